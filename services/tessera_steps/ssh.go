package main

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Options of ssh that are passed over, without a value and with one, and those with a value that are refused, as all
// others are: they ask for more than a command.
const (
	sshPassedOver     = "246AaCgKknqTtvXxYy"
	sshPassedOverPair = "bBcEeFIilmoPpS"
	sshRefusedPair    = "DJLOQRWw"
)

// SshLine is what a command line of ssh says.
type sshLine struct {
	host       string
	command    []string
	refused    string // the letter of the first option that is
	readsInput bool
}

func readSSHLine(arguments []string) sshLine {
	line := sshLine{readsInput: true}
	for line.host == "" && len(arguments) > 0 {
		word := arguments[0]
		arguments = arguments[1:]
		if len(word) < 2 || word[0] != '-' || word == "--" {
			if word != "--" {
				line.host = word
			}
			continue
		}
		for index := 1; index < len(word); index++ {
			letter := word[index : index+1]
			if !strings.Contains(sshPassedOver+sshPassedOverPair, letter) && line.refused == "" {
				line.refused = letter
			}
			line.readsInput = line.readsInput && letter != "n"
			if strings.Contains(sshPassedOverPair+sshRefusedPair, letter) {
				if index+1 == len(word) && len(arguments) > 0 {
					arguments = arguments[1:]
				}
				break
			}
		}
	}
	if len(arguments) > 0 && arguments[0] == "--" {
		arguments = arguments[1:]
	}
	line.command = arguments
	if _, name, ofUser := strings.Cut(line.host, "@"); ofUser {
		line.host = name
	}
	return line
}

// Ssh runs a command in a pod of the run, as `ssh HOST COMMAND` does by name: for launchers, which call it. It stays
// without terminals and forwarded ports. What is for no pod of the run is for the image's own ssh, where there is one.
// 255: its own errors.
func ssh(arguments []string) int {
	line := readSSHLine(arguments)
	r, config, err := runAndIdentity()
	rank, known := 0, false
	if err == nil {
		rank, known = r.rankOf(line.host)
	}
	if own := nextSSH(); !known && own != "" {
		err := syscall.Exec(own, append([]string{"ssh"}, arguments...), os.Environ())
		return complain("ssh", 255, "%s: %v", own, err)
	}
	switch {
	case line.host == "":
		return complain("ssh", 255, "no host: write ssh HOST COMMAND")
	case err != nil:
		return complain("ssh", 255, "%v", err)
	case !known:
		return complain("ssh", 255, "%s: no pod of this run is called so: they are %s", line.host, fold(r.nodes()))
	case line.refused != "":
		return complain("ssh", 255, "-%s is refused: this ssh runs a command in a pod of the run, and nothing else (docs/steps.md)", line.refused)
	case len(line.command) == 0:
		return complain("ssh", 255, "no command: there is no terminal to log in to: write ssh HOST COMMAND")
	}
	return runInPod(r, config, rank, line)
}

// NextSSH is the ssh on PATH that is not this program; empty where there is none.
func nextSSH() string {
	own, _ := os.Stat("/proc/self/exe")
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(folder, "ssh")
		found, err := os.Stat(path)
		if err == nil && filepath.IsAbs(path) && !os.SameFile(found, own) && executable(path) == nil {
			return path
		}
	}
	return ""
}

func runInPod(r run, config *tls.Config, rank int, line sshLine) int {
	l := newAgent(r, config, "ssh", true)
	l.runIn(rank, line.host, strings.Join(line.command, " "), line.readsInput)
	code := l.carryOut()
	if l.lost || code > 128 {
		return 255
	}
	return code
}

// NewAgent is a launch of commands that are no step, by the name of the program that was asked for them. It waits for
// pods that have not started yet, as srun does: a launcher's first word may come before the image of another pod.
func newAgent(r run, config *tls.Config, program string, unbuffered bool) *launch {
	return &launch{run: r, program: program, identity: config, patience: max(lossPatience, joinPatience-time.Since(startOf(os.Getenv("TESSERA_STEPS_PID"), time.Now()))), step: program, out: newOutputs(1, false, unbuffered), running: map[int]string{}, ended: make(chan struct{})}
}

// RunIn adds a command of a shell in a pod. What it leaves behind lives on.
func (l *launch) runIn(rank int, host, command string, reads bool) {
	task := len(l.starts)
	l.running[task] = host
	l.starts = append(l.starts, startMessage{rank: rank, keepOrphan: true, programs: [][]string{{"/bin/sh", "-c", command}}, tasks: []taskStart{{id: task, reads: reads}}})
	if reads {
		l.input = os.Stdin
	}
	for stream := range 2 {
		l.out.to(task, stream, "", true)
	}
}
