package main

import (
	"syscall"
	"testing"
)

func TestWarning(t *testing.T) {
	for said, wanted := range map[string][2]syscall.Signal{
		"":       {syscall.SIGTERM, syscall.SIGTERM},
		"USR1":   {0, syscall.SIGUSR1},
		"B:USR2": {syscall.SIGUSR2, 0},
		"B:TERM": {syscall.SIGTERM, 0},
	} {
		t.Setenv("TESSERA_STEPS_WARNING", said)
		found, err := readWarning()
		command, tasks := found.of(syscall.SIGTERM)
		if err != nil || command != wanted[0] || tasks != wanted[1] {
			t.Errorf("%q: %v and %v for SIGTERM, error %v", said, command, tasks, err)
		}
		if command, tasks = found.of(syscall.SIGUSR1); command != syscall.SIGUSR1 || tasks != syscall.SIGUSR1 {
			t.Errorf("%q: another signal is not as it was: %v, %v", said, command, tasks)
		}
	}
	t.Setenv("TESSERA_STEPS_WARNING", "B:KILL")
	if _, err := readWarning(); err == nil {
		t.Error("a signal that nobody can take is taken")
	}
}
