package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// PdshLine is what a command line of pdsh says.
type pdshLine struct {
	hosts, without []string
	command        []string
	highest        bool // the exit code is the highest of the hosts'
	bare           bool // lines without the host's name
}

func readPdshLine(arguments []string) (pdshLine, error) {
	var line pdshLine
	for len(arguments) > 0 && len(arguments[0]) > 1 && arguments[0][0] == '-' {
		word := arguments[0]
		arguments = arguments[1:]
		letter, value := word[1], word[2:]
		switch {
		case word == "--":
			line.command = arguments
			return line, nil
		case letter == 'S':
			line.highest = true
		case letter == 'N':
			line.bare = true
		case !strings.ContainsRune("wxRflutb", rune(letter)):
			return line, refusal(word + " is refused: this pdsh knows -w, -x, -S, -N, and passes over -R, -f, -l, -u, -t, -b")
		}
		if strings.ContainsRune("SNb", rune(letter)) {
			if value != "" { // letters that stand together
				arguments = slices.Concat([]string{"-" + value}, arguments)
			}
			continue
		}
		if value == "" && len(arguments) > 0 {
			value, arguments = arguments[0], arguments[1:]
		}
		hosts, err := expand(value)
		switch {
		case letter == 'w' && err == nil:
			line.hosts = append(line.hosts, hosts...)
		case letter == 'x' && err == nil:
			line.without = append(line.without, hosts...)
		case letter == 'w' || letter == 'x':
			return line, err
		}
	}
	line.command = arguments
	return line, nil
}

// Pdsh runs a command in many pods at once, as DeepSpeed and scripts call it, where an image has no pdsh of its own: in
// the pods of -w, else of the list WCOLL, else of the run. Every pod goes on though another fails.
func pdsh(arguments []string) int {
	line, err := readPdshLine(arguments)
	if err != nil {
		return complain("pdsh", 1, "%v", err)
	}
	if len(line.command) == 0 {
		return complain("pdsh", 1, "no command: write pdsh -w HOSTS COMMAND")
	}
	r, config, err := runAndIdentity()
	if err != nil {
		return complain("pdsh", 1, "%v", err)
	}
	hosts := line.hosts
	if hosts == nil {
		hosts = r.nodes()
		if list, err := os.ReadFile(os.Getenv("WCOLL")); err == nil {
			hosts = strings.Fields(string(list))
		}
	}
	without := map[int]bool{}
	for _, each := range line.without {
		if rank, known := r.rankOf(each); known {
			without[rank] = true
		}
	}
	hosts = slices.DeleteFunc(hosts, func(each string) bool {
		rank, known := r.rankOf(each)
		return known && without[rank]
	})
	if len(hosts) == 0 {
		return complain("pdsh", 1, "no hosts are left")
	}
	l := newAgent(r, config, "pdsh", false)
	for number, host := range hosts {
		rank, known := r.rankOf(host)
		if !known {
			return complain("pdsh", 1, "%s: no pod of this run is called so: they are %s", host, fold(r.nodes()))
		}
		words := strings.NewReplacer("%%", "%", "%h", host, "%n", strconv.Itoa(number), "%u", os.Getenv("USER"))
		l.runIn(rank, host, words.Replace(strings.Join(line.command, " ")), false)
		for stream := range 2 {
			if !line.bare {
				l.out.streams[[2]int{number, stream}].label = host + ": "
			}
		}
	}
	code := l.carryOut()
	if line.highest || l.lost {
		return code
	}
	return 0
}
