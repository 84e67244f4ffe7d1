package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SrunPart is what one part of a command line says: options, then a command. Numbers that are 0 were not said.
type srunPart struct {
	tasks, nodes, nodesAtMost, perNode, cpus, first int
	perNodeSaid                                     bool
	wanted, excluded                                string
	exact, overlap, overcommit, cyclic, pmi         bool
	gpus, gpusPerNode, gpusPerTask, tasksPerGPU     int
	noGPUs                                          bool
	gpuBind                                         string
	folder, export                                  string
	label, unbuffered, killOnBadExit, quiet         bool
	wait                                            time.Duration
	input, output, errors                           string
	appends, multiProgram                           bool
	notes                                           []string
	command                                         []string
	programs                                        [][]string // of its tasks in order, where they are several
}

func (p *srunPart) setNodes(value string) error {
	least, most, isRange := strings.Cut(value, "-")
	if !isRange {
		most = least
	}
	from, err := strconv.Atoi(least)
	to, err2 := strconv.Atoi(most)
	if err != nil || err2 != nil || from < 1 || to < from {
		return fmt.Errorf("%q is no number of pods", value)
	}
	p.nodes, p.nodesAtMost = from, to
	return nil
}

func (p *srunPart) setPerNode(value string) error {
	p.perNodeSaid = true
	return count(func(p *srunPart) *int { return &p.perNode })(p, value)
}

func (p *srunPart) setFirst(value string) error {
	number, err := strconv.Atoi(value)
	if err != nil || number < 0 {
		return fmt.Errorf("%q is no number of a pod from 0 on", value)
	}
	p.first = number
	return nil
}

func (p *srunPart) setWait(value string) error {
	seconds, err := strconv.Atoi(value)
	if err != nil || seconds < 0 {
		return fmt.Errorf("%q is no number of seconds", value)
	}
	p.wait = time.Duration(seconds) * time.Second
	return nil
}

func (p *srunPart) setDistribution(value string) error {
	overPods, _, _ := strings.Cut(value, ":")
	switch overPods, _, _ = strings.Cut(overPods, ","); overPods {
	case "block", "*", "":
		p.cyclic = false
	case "cyclic":
		p.cyclic = true
	default:
		return fmt.Errorf("%q: refused: write block or cyclic, and choose the pods by -w", value)
	}
	return nil
}

func (p *srunPart) setOpenMode(value string) error {
	if value == "" || !strings.HasPrefix("append", value) && !strings.HasPrefix("truncate", value) {
		return fmt.Errorf("%q is neither append nor truncate", value)
	}
	p.appends = value[0] == 'a'
	return nil
}

func (p *srunPart) setMPI(value string) error {
	if p.pmi = value == "pmi2"; !p.pmi && value != "none" {
		return fmt.Errorf("%s is refused: a step serves pmi2, for MPICH and Intel MPI: start programs of OpenMPI by mpirun, which starts their tasks by srun (docs/steps.md)", value)
	}
	return nil
}

func (p *srunPart) setJob(value string) error {
	if value != os.Getenv("SLURM_JOB_ID") && value != os.Getenv("TESSERA_JOB_ID") {
		return fmt.Errorf("%s is refused: a step belongs to the job that it is started in, %s: delete it", value, os.Getenv("TESSERA_JOB_ID"))
	}
	return nil
}

func (p *srunPart) setImage(value string) error {
	own := os.Getenv("TESSERA_IMAGE")
	plain := func(image string) string {
		return strings.ReplaceAll(strings.TrimPrefix(image, "docker://"), "#", "/")
	}
	if own == "" || plain(value) != plain(own) {
		return fmt.Errorf("%s is refused: the pod's image is %q: %s", value, own, sayInJob)
	}
	return nil
}

// ParseSrun reads a command line: one part, or several with a ":" between them.
func parseSrun(arguments []string) ([]*srunPart, error) {
	var parts []*srunPart
	for {
		part := &srunPart{pmi: os.Getenv("SLURM_MPI_TYPE") == "pmi2"}
		rest, err := part.parseOptions(arguments)
		if err != nil {
			return nil, err
		}
		end := slices.Index(rest, ":")
		part.command = rest
		if end >= 0 {
			part.command = rest[:end]
		}
		if len(part.command) == 0 {
			return nil, errors.New("No command given to execute.")
		}
		parts = append(parts, part)
		if end < 0 {
			return parts, nil
		}
		arguments = rest[end+1:]
	}
}

// Ask is what a part asks of the first pod: what is not said is as the job has it.
func (p *srunPart) ask(r run) (ask, error) {
	asked := ask{tasks: p.tasks, nodes: p.nodes, cpus: max(p.cpus, 1), first: p.first, overlap: p.overlap, overcommit: p.overcommit}
	asked.exact = p.exact || p.cpus > 0
	if p.nodesAtMost > p.nodes {
		asked.nodes = max(p.nodes, min(p.nodesAtMost, r.size))
	}
	nodes := asked.nodes
	if nodes == 0 {
		nodes = r.size
	}
	if asked.tasks == 0 {
		asked.tasks, _ = strconv.Atoi(os.Getenv("SLURM_NTASKS"))
	}
	p.askGPUs(&asked, nodes)
	if asked.tasks <= 0 {
		asked.tasks = nodes * max(p.perNode, 1)
	}
	if p.perNode > 0 && asked.tasks <= nodes*p.perNode {
		asked.perNode = p.perNode
	} else if p.perNodeSaid {
		p.notes = append(p.notes, fmt.Sprintf("can't honor --ntasks-per-node set to %d which doesn't match the requested tasks %d with the number of requested nodes %d. Ignoring --ntasks-per-node.", p.perNode, asked.tasks, nodes))
	}
	var err, err2 error
	asked.wanted, err = r.ranks(p.wanted)
	asked.excluded, err2 = r.ranks(p.excluded)
	if err = errors.Join(err, err2); err != nil {
		return asked, err
	}
	if _, ofTask := fileName(p.output, map[byte]string{'t': "", 'n': "", 'N': ""}); p.label && ofTask {
		p.notes = append(p.notes, "--label is passed over where --output names a file for each task or pod")
	}
	for _, each := range asked.wanted {
		if slices.Contains(asked.excluded, each) {
			return asked, fmt.Errorf("%s is wanted and excluded", r.node(each))
		}
	}
	return asked, nil
}

// Ranks are the pods of a list of names, folded or not.
func (r run) ranks(names string) ([]int, error) {
	hosts, err := expand(names)
	if err != nil {
		return nil, err
	}
	var ranks []int
	for _, each := range hosts {
		rank, known := r.rankOf(each)
		if !known {
			return nil, fmt.Errorf("%s: no pod of this run is called so: they are %s", each, fold(r.nodes()))
		}
		if !slices.Contains(ranks, rank) {
			ranks = append(ranks, rank)
		}
	}
	return ranks, nil
}

func srun(arguments []string) int {
	parts, err := parseSrun(arguments)
	if err != nil {
		return complain("srun", 1, "%v", err)
	}
	r, config, err := runAndIdentity()
	if err != nil {
		return complain("srun", 1, "%v", err)
	}
	message := allocateMessage{rank: 0, name: cut(filepath.Base(parts[0].command[0]), nameBytes)}
	for _, part := range parts {
		asked, err := part.ask(r)
		if err == nil && part.multiProgram {
			part.programs, err = readPrograms(part.command[0], asked.tasks)
		}
		if err != nil {
			return complain("srun", 1, "%v", err)
		}
		for _, note := range part.notes {
			fmt.Fprintf(os.Stderr, "srun: Warning: %s\n", note)
		}
		message.parts = append(message.parts, asked)
	}
	held, granted, err := allocation(r, config, &message, parts[0].quiet)
	if err != nil {
		return complain("srun", 1, "Unable to create step for job %s: %v", r.job, err)
	}
	l, err := newLaunch(r, config, parts, message.parts, granted)
	if err != nil {
		complain("srun", 1, "%v", err)
		go (&launch{}).hear(held)
		return giveBack(held, 1)
	}
	go l.hear(held)
	return giveBack(held, l.carryOut())
}

func runAndIdentity() (run, *tls.Config, error) {
	r, err := thisRun()
	if err != nil {
		return r, nil, err
	}
	key, err := readKey(r.key)
	if err != nil {
		return r, nil, err
	}
	config, err := identity(key)
	return r, config, err
}

// Allocation waits for the step's place, and says why it waits. The connection holds the place.
func allocation(r run, config *tls.Config, message *allocateMessage, quiet bool) (*peer, *grantedMessage, error) {
	held, err := dialPatiently(context.Background(), lossPatience, config, r.address(0), r.port)
	if err != nil {
		return nil, nil, err
	}
	go held.keepAlive()
	if err := held.sendMessage(frameAllocate, message); err != nil {
		return nil, nil, err
	}
	for waited := false; ; waited = true {
		kind, payload, err := held.receive()
		if err != nil {
			return nil, nil, fmt.Errorf("the first pod, %s, is gone: %w", r.host(0), err)
		}
		switch kind {
		case frameWaiting:
			if !quiet {
				fmt.Fprintf(os.Stderr, "srun: Job %s step creation temporarily disabled, retrying (%s)\n", r.job, payload)
			}
		case frameGranted:
			if waited && !quiet {
				fmt.Fprintf(os.Stderr, "srun: Step created for job %s\n", r.job)
			}
			var granted grantedMessage
			return held, &granted, decode(payload, &granted)
		case frameRefused:
			return nil, nil, refusal(payload)
		}
	}
}

// ReadPrograms reads the file of --multi-prog: for each task the words of its program, %t its number, %o that within
// its line.
func readPrograms(path string, tasks int) ([][]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	programs := make([][]string, tasks)
	for number, line := range strings.Split(strings.ReplaceAll(string(content), "\\\n", " "), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		which, rest, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		of, offset, err := tasksOf(which, tasks)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number+1, err)
		}
		for index, task := range of {
			if programs[task] == nil {
				programs[task] = words(rest, map[byte]string{'t': strconv.Itoa(task), 'o': strconv.Itoa(offset(index, task))})
			}
			if len(programs[task]) == 0 {
				return nil, fmt.Errorf("%s:%d: no program", path, number+1)
			}
		}
	}
	if missing := slices.IndexFunc(programs, func(each []string) bool { return each == nil }); missing >= 0 {
		return nil, fmt.Errorf("%s: no program for task %d of %d", path, missing, tasks)
	}
	return programs, nil
}

func tasksOf(which string, tasks int) ([]int, func(index, task int) int, error) {
	if which == "*" {
		all := make([]int, tasks)
		for index := range all {
			all[index] = index
		}
		return all, func(_, task int) int { return task }, nil
	}
	numbers, err := expand("[" + which + "]")
	if err != nil {
		return nil, nil, fmt.Errorf("%q names no tasks", which)
	}
	var of []int
	for _, each := range numbers {
		if number, err := strconv.Atoi(each); err == nil && number < tasks {
			of = append(of, number)
		}
	}
	return of, func(index, _ int) int { return index }, nil
}

// Words splits a line as a shell does, as far as spaces, quotes and backslashes; %-letters stand outside of quotes.
func words(line string, letters map[byte]string) []string {
	found, word, quote, inWord := []string{}, []byte{}, byte(0), false
	for index := 0; index < len(line); index++ {
		letter := line[index]
		switch {
		case quote != 0 && letter == quote:
			quote = 0
		case letter == '\\' && quote != '\'' && index+1 < len(line):
			index++
			word, inWord = append(word, line[index]), true
		case quote != 0:
			word = append(word, letter)
		case letter == '"' || letter == '\'':
			quote, inWord = letter, true
		case letter == ' ':
			if inWord {
				found, word, inWord = append(found, string(word)), word[:0], false
			}
		case letter == '%' && index+1 < len(line) && letters[line[index+1]] != "":
			index++
			word, inWord = append(word, letters[line[index]]...), true
		default:
			word, inWord = append(word, letter), true
		}
	}
	if inWord {
		found = append(found, string(word))
	}
	return found
}

// Differences are how the environment of now differs from that which the pod's processes began with: what the script
// made of it. In another pod they are made to that pod's own.
func differences() (set, unset []string) {
	now := os.Environ()
	runner, _ := strconv.Atoi(os.Getenv("TESSERA_STEPS_PID"))
	container, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", runner))
	if err != nil || len(container) == 0 { // another user's: all goes along, but for what is each pod's own
		return slices.DeleteFunc(now, func(each string) bool {
			name, _, _ := strings.Cut(each, "=")
			return name == "TESSERA_RANK" || name == "TESSERA_STEPS_PID" || name == "HOSTNAME"
		}), nil
	}
	began := podEnvironment(strings.Split(strings.TrimSuffix(string(container), "\x00"), "\x00"), runner)
	known := make(map[string]bool, len(began))
	for _, each := range began {
		known[each] = true
	}
	names := make(map[string]bool, len(now))
	for _, each := range now {
		name, _, _ := strings.Cut(each, "=")
		names[name] = true
		if !known[each] {
			set = append(set, each)
		}
	}
	for _, each := range began {
		if name, _, _ := strings.Cut(each, "="); !names[name] {
			unset = append(unset, name)
		}
	}
	return set, unset
}

// Exported are the variables that --export lets through: which are set, which unset, and whether only these are.
func exported(export string) (set, unset []string, bare bool) {
	set, unset = differences()
	if export == "" || export == "ALL" {
		return set, unset, false
	}
	var named []string
	words := strings.Split(export, ",")
	bare = !slices.Contains(words, "ALL")
	for _, each := range words {
		name, _, isSet := strings.Cut(each, "=")
		value, there := os.LookupEnv(name)
		switch {
		case each == "ALL" || each == "NONE" || each == "NIL" || each == "":
		case isSet && there && !bare: // beside ALL what is there already counts
		case isSet:
			named = append(named, each)
		case there:
			named = append(named, name+"="+value)
		}
	}
	if bare {
		set, unset = slices.DeleteFunc(set, func(each string) bool { return !ofTheRun(each) }), nil
	}
	return append(append(set, "SLURM_EXPORT_ENV="+export), named...), unset, bare
}

// FileName writes out a name of --output and the like. False: it is the same for all tasks.
func fileName(pattern string, letters map[byte]string) (string, bool) {
	name, ofTask := []byte{}, false
	for index := 0; index < len(pattern); index++ {
		end := index + 1
		for end < len(pattern) && pattern[end] >= '0' && pattern[end] <= '9' {
			end++
		}
		if pattern[index] != '%' || end >= len(pattern) {
			name = append(name, pattern[index])
			continue
		}
		letter := pattern[end]
		value, known := letters[letter]
		switch {
		case letter == '%':
			name = append(name, '%')
		case known:
			width, _ := strconv.Atoi(pattern[index+1 : end])
			if _, err := strconv.Atoi(value); err == nil {
				value = strings.Repeat("0", max(0, min(width, 10)-len(value))) + value
			}
			name = append(name, value...)
			ofTask = ofTask || letter == 't' || letter == 'n' || letter == 'N'
		default:
			name = append(name, pattern[index:end+1]...)
		}
		index = end
	}
	return string(name), ofTask
}

func absolute(path, folder string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(folder, path)
}
