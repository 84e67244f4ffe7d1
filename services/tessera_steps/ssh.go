package main

import (
	"os"
	"strings"
)

// Options of ssh that are passed over, without a value and with one; the others are refused.
const (
	sshPassedOver     = "46AaCgKknqTtvXxYy"
	sshPassedOverPair = "bBcEeFIilmoPpS"
)

// Ssh runs a command in a pod of the run, as `ssh HOST COMMAND` does by name: for launchers that are told of an agent,
// and where an image has no ssh of its own. It stays without terminals and forwarded ports. 255: its own errors.
func ssh(arguments []string) int {
	host, readsInput := "", true
	for host == "" {
		if len(arguments) == 0 {
			return complain("ssh", 255, "no host: write ssh HOST COMMAND")
		}
		word := arguments[0]
		arguments = arguments[1:]
		if len(word) < 2 || word[0] != '-' || word == "--" {
			if word != "--" {
				host = word
			}
			continue
		}
		for index := 1; index < len(word); index++ {
			letter := word[index : index+1]
			switch {
			case strings.Contains(sshPassedOver, letter):
				readsInput = readsInput && letter != "n"
				continue
			case strings.Contains(sshPassedOverPair, letter):
				if index+1 == len(word) && len(arguments) > 0 {
					arguments = arguments[1:]
				}
			default:
				return complain("ssh", 255, "-%s is refused: this ssh runs a command in a pod of the run, and nothing else (docs/steps.md)", letter)
			}
			break
		}
	}
	if len(arguments) > 0 && arguments[0] == "--" {
		arguments = arguments[1:]
	}
	if len(arguments) == 0 {
		return complain("ssh", 255, "no command: there is no terminal to log in to: write ssh HOST COMMAND")
	}
	r, config, err := runAndIdentity()
	if err != nil {
		return complain("ssh", 255, "%v", err)
	}
	if _, name, ofUser := strings.Cut(host, "@"); ofUser {
		host = name
	}
	rank, known := r.rankOf(host)
	if !known {
		return complain("ssh", 255, "%s: no pod of this run is called so: they are %s", host, fold(r.nodes()))
	}
	l := &launch{run: r, program: "ssh", identity: config, step: "ssh", out: newOutputs(1, false, true), running: map[int]string{0: host}, ended: make(chan struct{})}
	start := startMessage{rank: rank, keepOrphan: true, programs: [][]string{{"/bin/sh", "-c", strings.Join(arguments, " ")}}, tasks: []taskStart{{reads: readsInput}}}
	l.starts = []startMessage{start}
	if readsInput {
		l.input = os.Stdin
	}
	for stream := range 2 {
		l.out.to(0, stream, "", true)
	}
	code := l.carryOut()
	if l.lost || code > 128 {
		return 255
	}
	return code
}
