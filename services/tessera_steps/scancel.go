package main

import (
	"strings"
	"syscall"
)

// Options of scancel that have a value and name jobs in another way than by id: those are others' jobs, too.
var choosesJobs = map[string]string{
	"-u": "--user", "-n": "--name", "-p": "--partition", "-t": "--state", "-A": "--account", "-w": "--nodelist", "-q": "--qos", "-R": "--reservation",
	"--user": "", "--name": "", "--jobname": "", "--partition": "", "--state": "", "--account": "", "--nodelist": "", "--qos": "", "--reservation": "",
	"--wckey": "", "--me": "", "--sibling": "", "-M": "--clusters", "--clusters": "",
}

var scancelPassedOver = map[string]bool{"-Q": true, "--quiet": true, "-v": true, "--verbose": true, "-i": true, "--interactive": true, "-H": true, "--hurry": true}

// ScancelWords are a command line of scancel.
type scancelWords struct {
	named          []string
	signal         syscall.Signal // 0: the job, or a step, is to end
	toBatch, toAll bool
}

func parseScancel(arguments []string) (scancelWords, error) {
	var said scancelWords
	for index := 0; index < len(arguments); index++ {
		word := arguments[index]
		name, value, joined := strings.Cut(word, "=")
		if len(word) > 2 && word[0] == '-' && word[1] != '-' && word[1] == 's' {
			name, value, joined = "-s", word[2:], true
		}
		switch _, chooses := choosesJobs[name]; {
		case name == "-s" || name == "--signal":
			if !joined {
				if index++; index == len(arguments) {
					return said, refusal(name + ": no signal is named")
				}
				value = arguments[index]
			}
			var err error
			if said.signal, err = signalNamed(value); err != nil {
				return said, err
			}
		case name == "-b" || name == "--batch":
			said.toBatch = true
		case name == "-f" || name == "--full":
			said.toAll = true
		case scancelPassedOver[name]:
		case chooses:
			return said, refusal(name + " is refused: " + elsewhere + ": name it, scancel $SLURM_JOB_ID, or cancel others on the machine from which you submit: tessera scancel " + strings.Join(arguments, " "))
		case strings.HasPrefix(word, "-"):
			return said, refusal(word + " is refused: here are --signal, --batch, --full and $SLURM_JOB_ID or one of its steps")
		default:
			said.named = append(said.named, strings.FieldsFunc(word, func(each rune) bool { return each == ',' || each == ' ' })...)
		}
	}
	if len(said.named) == 0 {
		return said, refusal("no job is named: write scancel $SLURM_JOB_ID")
	}
	return said, nil
}

// Scancel cancels the own job, ends a step of it, or sends either a signal.
func scancel(arguments []string) int {
	said, err := parseScancel(arguments)
	if err != nil {
		return complain("scancel", 1, "%v", err)
	}
	var wanted []wishMessage
	for _, each := range said.named {
		job, step, err := stepOf(each)
		if err == nil {
			err = isOwnJob(job, "tessera scancel")
		}
		if err != nil {
			return complain("scancel", 1, "%v", err)
		}
		wanted = append(wanted, said.wishes(step)...)
	}
	for _, each := range wanted {
		if err := wish(each); err != nil {
			return complain("scancel", 1, "%v", err)
		}
	}
	return 0
}

// Wishes are what one name asks for: as with Slurm a signal goes to the steps, with --batch to the script, with --full
// to both; SIGKILL for all of a job ends that.
func (s scancelWords) wishes(step int) []wishMessage {
	ends := s.signal == 0 || s.signal == syscall.SIGKILL && !s.toBatch
	signal := func(to int) wishMessage {
		return wishMessage{wish: wishSignal, who: "scancel", signal: int(s.signal), step: to}
	}
	switch {
	case step == allSteps && ends && !s.toBatch:
		return []wishMessage{{wish: wishCancel, who: "scancel"}}
	case step == batchStep || step == allSteps && s.toBatch:
		if s.signal == 0 {
			s.signal = syscall.SIGTERM
		}
		return []wishMessage{signal(batchStep)}
	case step >= 0 && s.signal == 0:
		return []wishMessage{{wish: wishEndStep, who: "scancel", step: step}}
	case s.toAll && step == allSteps:
		return []wishMessage{signal(allSteps), signal(batchStep)}
	}
	return []wishMessage{signal(step)}
}
