package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

var signalsByName = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "TERM": syscall.SIGTERM,
}

// Warning is what comes in place of the SIGTERM by which Kubernetes ends a pod, as a script's --signal asks for it: a
// signal to the command alone, or to the tasks of steps alone. The zero value leaves SIGTERM, which goes to both.
type warning struct {
	signal    syscall.Signal
	toCommand bool
}

// ReadWarning reads TESSERA_STEPS_WARNING: `USR1` for the tasks, `B:USR1` for the command.
func readWarning() (warning, error) {
	said := os.Getenv("TESSERA_STEPS_WARNING")
	name, toCommand := strings.CutPrefix(said, "B:")
	found, known := signalsByName[name]
	if said != "" && !known {
		return warning{}, fmt.Errorf("TESSERA_STEPS_WARNING %q names no signal", said)
	}
	return warning{found, toCommand}, nil
}

// Of is what the command and the tasks get for a signal to the pod; 0 is nothing.
func (w warning) of(wanted syscall.Signal) (command, tasks syscall.Signal) {
	switch {
	case w.signal == 0 || wanted != syscall.SIGTERM:
		return wanted, wanted
	case w.toCommand:
		return w.signal, 0
	default:
		return 0, w.signal
	}
}
