package main

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Children are the processes that the runner started, and those that their parents left to it: as process 1 of its pod
// it waits for all. The lock makes start and registration one, so that no child is reaped before it is known.
type children struct {
	lock    sync.Mutex
	waiting map[int]chan syscall.WaitStatus // nil: the run has ended here
	reaped  chan struct{}                   // some child was
}

func newChildren() *children {
	c := &children{waiting: map[int]chan syscall.WaitStatus{}, reaped: make(chan struct{}, 1)}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0) // where it is not process 1
	go func() {
		for range ended {
			c.reap()
		}
	}()
	return c
}

const (
	prSetChildSubreaper = 36
	endPatience         = 5 * time.Second // for what was killed to be gone
)

func (c *children) reap() {
	c.lock.Lock()
	defer c.lock.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if waiter := c.waiting[pid]; waiter != nil {
			delete(c.waiting, pid)
			waiter <- status
		}
		select {
		case c.reaped <- struct{}{}:
		default:
		}
	}
}

// End kills all that is left of the run here, as the kernel does where the runner is process 1, and waits until it is
// gone. Nothing is started any more, and nobody is told how the killed ended: whoever could be is killed as well.
func (c *children) end() {
	c.lock.Lock()
	c.waiting = nil
	c.lock.Unlock()
	giveUp := time.After(endPatience)
	for left := descendants(os.Getpid())[1:]; len(left) > 0; left = descendants(os.Getpid())[1:] {
		for _, each := range left {
			syscall.Kill(each, syscall.SIGKILL)
		}
		select {
		case <-c.reaped:
		case <-giveUp: // the kernel does not let go of one
			return
		}
	}
}

// Start starts a program; its status comes through the channel, once.
func (c *children) start(path string, argv []string, attributes *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.waiting == nil {
		return 0, nil, refusal("the run has ended")
	}
	pid, err := syscall.ForkExec(path, argv, attributes)
	if err != nil {
		return 0, nil, err
	}
	waiter := make(chan syscall.WaitStatus, 1)
	c.waiting[pid] = waiter
	return pid, waiter, nil
}

// BecomeTask makes this process the program at a path, which then knows its own process number as Slurm's tasks do.
func becomeTask(path string, argv []string) int {
	err := syscall.Exec(path, argv, changed(os.Environ(), []string{"SLURM_TASK_PID=" + strconv.Itoa(os.Getpid())}, nil))
	number, _ := err.(syscall.Errno)
	return complain("tessera-steps", max(int(number), 1), "execve(): %s: %v", argv[0], err)
}

// ExitCode is a status as shells say it: 128 and the signal's number for one that killed.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// FindProgram looks a name up in the PATH of an environment, beginning in a folder where it is relative.
func findProgram(name, folder string, environment []string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(folder, name)
		}
		return name, executable(name)
	}
	result := error(syscall.ENOENT)
	for _, each := range filepath.SplitList(valueOf(environment, "PATH")) {
		if !filepath.IsAbs(each) {
			each = filepath.Join(folder, each)
		}
		path := filepath.Join(each, name)
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if errors.Is(err, syscall.EACCES) {
			result = err
		}
	}
	return name, result
}

func executable(path string) error {
	found, err := os.Stat(path)
	switch {
	case err != nil:
		return syscall.ENOENT
	case found.IsDir() || found.Mode()&0o111 == 0:
		return syscall.EACCES
	}
	return nil
}

// ValueOf is the value of a variable in an environment; the last one counts.
func valueOf(environment []string, name string) string {
	for index := len(environment) - 1; index >= 0; index-- {
		if found, value, _ := strings.Cut(environment[index], "="); found == name {
			return value
		}
	}
	return ""
}

// Changed is an environment with variables set anew and others taken out.
func changed(environment, set, unset []string) []string {
	skip := make(map[string]bool, len(set)+len(unset))
	for _, name := range unset {
		skip[name] = true
	}
	for _, each := range set {
		name, _, _ := strings.Cut(each, "=")
		skip[name] = true
	}
	result := make([]string, 0, len(environment)+len(set))
	for _, each := range environment {
		if name, _, _ := strings.Cut(each, "="); !skip[name] {
			result = append(result, each)
		}
	}
	last := make(map[string]int, len(set))
	for index, each := range set {
		name, _, _ := strings.Cut(each, "=")
		last[name] = index
	}
	for index, each := range set {
		if name, _, _ := strings.Cut(each, "="); last[name] == index {
			result = append(result, each)
		}
	}
	return result
}
