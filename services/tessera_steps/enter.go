package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// EntryEnvironment is what a process begins with that came into the pod from outside, by an exec of Kubernetes: that of
// the pod's own processes, as if the runner, which is process 1, had started it.
func entryEnvironment() []string {
	if os.Getenv("TESSERA_STEPS_PID") != "" {
		return os.Environ()
	}
	return podEnvironment(os.Environ(), 1)
}

// Enter makes this process a command of the pod.
func enter(command []string) int {
	environment := entryEnvironment()
	path, err := findProgram(command[0], ".", environment)
	if err == nil {
		err = syscall.Exec(path, command, environment)
	}
	return complain("tessera-steps", 127-boolAsInt(err == syscall.EACCES), "%s: %v", command[0], err)
}

// As runs a command under a name, by which tell finds it, and hands on the signals that reach it.
func as(command []string) int {
	environment := entryEnvironment()
	path, err := findProgram(command[0], ".", environment)
	if err != nil {
		return complain("tessera-steps", 127-boolAsInt(err == syscall.EACCES), "%s: %v", command[0], err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	process, err := os.StartProcess(path, command, &os.ProcAttr{Env: environment, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return complain("tessera-steps", 126, "%s: %v", command[0], err)
	}
	go func() {
		for each := range signals {
			process.Signal(each)
		}
	}()
	state, err := process.Wait()
	if err != nil {
		return complain("tessera-steps", 126, "%s: %v", command[0], err)
	}
	return exitCode(state.Sys().(syscall.WaitStatus))
}

// Tell sends a signal to what runs in this pod under a name; 1 where nothing does.
func tell(name, wanted string) int {
	number, known := signalsByName[strings.TrimPrefix(wanted, "SIG")]
	if !known {
		return complain("tessera-steps", 2, "%s: no such signal", wanted)
	}
	found := processesAs("/proc", name)
	for _, pid := range found {
		if err := syscall.Kill(pid, number); err != nil {
			return complain("tessera-steps", 1, "%s: %v", name, err)
		}
	}
	if len(found) == 0 {
		return complain("tessera-steps", 1, "%s: nothing runs under this name", name)
	}
	return 0
}

func processesAs(folder, name string) []int {
	var found []int
	files, _ := filepath.Glob(fmt.Sprintf("%s/[0-9]*/cmdline", folder))
	for _, file := range files {
		content, _ := os.ReadFile(file) // it may have ended
		words := strings.Split(string(content), "\x00")
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && len(words) > 3 && filepath.Base(words[0]) == "tessera-steps" && slices.Equal(words[1:3], []string{"as", name}) {
			found = append(found, pid)
		}
	}
	return found
}
