// Tessera-steps starts processes in the other pods of a run: one program that is the runner in every pod and, by the
// name that it is called by, srun, ssh and scontrol.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Programs are the names of this one, each with its main function: arguments in, exit code out.
var programs = map[string]func([]string) int{"srun": srun, "ssh": ssh, "scontrol": scontrol, "scancel": scancel, "squeue": squeue, "pdsh": pdsh}

func init() {
	for name := range absent {
		programs[name] = sayAbsent(name)
	}
}

func main() {
	name, arguments := filepath.Base(os.Args[0]), os.Args[1:]
	if program := programs[name]; program != nil {
		os.Exit(program(arguments))
	}
	os.Exit(steps(arguments))
}

const usage = `tessera-steps install FOLDER      copy this program and its names into FOLDER/bin and FOLDER/fallback
tessera-steps pod -- COMMAND...   run COMMAND in the first pod of a run, and serve steps in every pod of it
tessera-steps ray COMMAND...      become COMMAND in the first pod, once Ray runs in all of them
tessera-steps options             the options of srun, as a table
tessera-steps enter COMMAND...    become COMMAND, which came from outside, as one of the pod's own
tessera-steps as NAME COMMAND...  run COMMAND so that tell finds it, and hand signals on to it
tessera-steps tell NAME SIGNAL    send a signal to what runs in this pod under NAME
tessera-steps srun|ssh|pdsh|scontrol|scancel|squeue ARGUMENTS...`

func steps(arguments []string) int {
	if len(arguments) == 0 {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	switch command, rest := arguments[0], arguments[1:]; {
	case command == "install" && len(rest) == 1:
		return install(rest[0])
	case command == "pod" && len(rest) > 1 && rest[0] == "--":
		return pod(rest[1:])
	case command == "task" && len(rest) > 1:
		return becomeTask(rest[0], rest[1:])
	case command == "enter" && len(rest) > 0:
		return enter(rest)
	case command == "as" && len(rest) > 1:
		return as(rest[1:])
	case command == "tell" && len(rest) == 2:
		return tell(rest[0], rest[1])
	case command == "ray" && len(rest) > 0:
		return withRay(rest)
	case command == "options" && len(rest) == 0:
		fmt.Print(optionTable())
		return 0
	case programs[command] != nil:
		return programs[command](rest)
	}
	fmt.Fprintf(os.Stderr, "tessera-steps: %s: no such use\n%s\n", strings.Join(arguments, " "), usage)
	return 2
}

// Complain says an error as the named program does and returns the exit code that goes with it.
func complain(program string, code int, text string, values ...any) int {
	fmt.Fprintf(os.Stderr, program+": error: "+text+"\n", values...)
	return code
}
