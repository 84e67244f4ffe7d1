package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	killWait    = 30 * time.Second // between SIGTERM and SIGKILL, as Slurm's KillWait
	tellAfter   = 5 * time.Second  // whom a launch waits for
	inputBytes  = 16 << 10
	dialsAtOnce = 64
)

// Launch is tasks in several pods and one program here that stands for them: their output, input, signals, exit code.
type launch struct {
	run
	program  string
	identity *tls.Config
	step     string
	patience time.Duration // for every pod to be reached
	starts   []startMessage
	peers    []*peer
	out      *outputs
	onBad    bool
	wait     time.Duration
	input    *os.File // nil: no task reads from here
	pmi      *pmiServer

	lock    sync.Mutex
	running map[int]string // tasks, each with the name of its pod
	highest int
	lost    bool
	ending  bool
	outside chan os.Signal  // what the first pod has for the tasks; nil: this is no step
	taken   []chan struct{} // of each pod: it took the last piece of input; closed when its tasks have ended
	ended   chan struct{}
}

// Direct says where the streams of a task go: to here, or to a file that its pod opens.
func (p *srunPart) direct(task *taskStart, l *launch, nodeID, rank int, folder string) error {
	_, number, _ := strings.Cut(l.step, ".")
	letters := map[byte]string{'t': strconv.Itoa(task.id), 'n': strconv.Itoa(nodeID), 'N': l.node(rank), 'j': l.job, 'A': l.job, 'J': l.step, 's': number, 'x': os.Getenv("SLURM_JOB_NAME"), 'u': os.Getenv("USER")}
	isTask := func(value string) bool { _, err := strconv.Atoi(value); return err == nil }
	switch input, ofTask := fileName(p.input, letters); {
	case p.input == "none" || isTask(p.input) && p.input != letters['t']:
	case ofTask:
		task.input = absolute(input, folder)
	default:
		task.reads = true
		if p.input != "" && p.input != "all" && !isTask(p.input) && l.input == nil {
			file, err := os.Open(absolute(input, folder))
			if err != nil {
				return err
			}
			l.input = file
		} else if l.input == nil {
			l.input = os.Stdin
		}
	}
	for stream, said := range []string{p.output, cmp.Or(p.errors, p.output)} {
		file := ""
		switch name, ofTask := fileName(said, letters); {
		case said == "none" || isTask(said) && said != letters['t']:
			file = os.DevNull
		case ofTask:
			file = absolute(name, folder)
		default:
			if said == "" || said == "all" || isTask(said) {
				name = ""
			} else {
				name = absolute(name, folder)
			}
			if err := l.out.to(task.id, stream, name, p.appends); err != nil {
				return err
			}
		}
		if stream == 0 {
			task.output = file
		} else {
			task.errors = file
		}
	}
	return nil
}

// NewLaunch writes what each pod is to start. The number of a task goes over the parts, that within a pod over its tasks.
func newLaunch(r run, config *tls.Config, parts []*srunPart, asks []ask, granted *grantedMessage) (*launch, error) {
	first := parts[0]
	l := &launch{run: r, program: "srun", identity: config, patience: lossPatience, step: fmt.Sprintf("%s.%d", r.job, granted.step), onBad: first.killOnBadExit, wait: first.wait,
		running: map[int]string{}, ended: make(chan struct{}), outside: make(chan os.Signal, 16)}
	layout := layOut(parts, granted.shares)
	if slices.ContainsFunc(parts, func(p *srunPart) bool { return p.pmi }) {
		l.pmi = newPmiServer(layout)
	}
	l.out = newOutputs(layout.tasks, first.label, first.unbuffered)
	for part, each := range parts {
		common := layout.variables(l, asks[part])
		set, unset, bare := exported(each.export)
		folder, _ := os.Getwd()
		if each.folder != "" {
			folder = absolute(each.folder, folder)
		}
		for _, share := range granted.shares {
			if share.part != part {
				continue
			}
			start := startMessage{rank: share.rank, folder: folder, bare: bare, set: slices.Concat(set, common), unset: unset, appends: each.appends, pmi: l.pmi != nil,
				programs: [][]string{each.command}}
			for index, id := range layout.ids[part][share.rank] {
				task := taskStart{id: id, set: layout.ofTask(l, id, share, index, asks[part])}
				if start.pmi {
					task.set = append(task.set, pmiVariables(id, layout.tasks)...)
				}
				if len(each.programs) > 0 {
					if index == 0 {
						start.programs = nil
					}
					task.program = len(start.programs)
					start.programs = append(start.programs, each.programs[id-layout.begins[part]])
				}
				if err := each.direct(&task, l, layout.nodeOf(share.rank), share.rank, folder); err != nil {
					return nil, err
				}
				start.tasks = append(start.tasks, task)
				l.running[id] = r.node(share.rank)
			}
			l.starts = append(l.starts, start)
		}
	}
	return l, nil
}

// Layout is which task is where.
type layout struct {
	tasks  int
	begins []int           // the first task of each part
	ids    []map[int][]int // of each part: the tasks by pod
	ranks  []int           // of the step, in order
	local  map[int]int     // a task's number within its pod
	counts map[int]int     // tasks by pod
	inPod  map[int]string  // their numbers
}

func layOut(parts []*srunPart, shares []share) *layout {
	l := &layout{local: map[int]int{}, counts: map[int]int{}, inPod: map[int]string{}}
	for part, each := range parts {
		l.begins = append(l.begins, l.tasks)
		ids := map[int][]int{}
		left := map[int]int{}
		own := slices.DeleteFunc(slices.Clone(shares), func(s share) bool { return s.part != part })
		total := 0
		for _, share := range own {
			left[share.rank] = share.tasks
			total += share.tasks
		}
		for placed := 0; placed < total; {
			for _, share := range own {
				for left[share.rank] > 0 {
					ids[share.rank] = append(ids[share.rank], l.tasks+placed)
					placed++
					left[share.rank]--
					if each.cyclic {
						break
					}
				}
			}
		}
		for rank, of := range ids {
			if l.counts[rank] == 0 {
				l.ranks = append(l.ranks, rank)
			}
			for _, id := range of {
				l.local[id] = l.counts[rank]
				l.counts[rank]++
				l.inPod[rank] = strings.TrimPrefix(l.inPod[rank]+","+strconv.Itoa(id), ",")
			}
		}
		l.ids = append(l.ids, ids)
		l.tasks += total
	}
	slices.Sort(l.ranks)
	return l
}

func (y *layout) nodeOf(rank int) int { return slices.Index(y.ranks, rank) }

// Variables are those that all tasks of a step have alike.
func (y *layout) variables(l *launch, asked ask) []string {
	nodes, perNode := []string{}, []int{}
	for _, rank := range y.ranks {
		nodes, perNode = append(nodes, l.node(rank)), append(perNode, y.counts[rank])
	}
	tasks, pods, list, each := strconv.Itoa(y.tasks), strconv.Itoa(len(nodes)), fold(nodes), foldCounts(perNode)
	_, number, _ := strings.Cut(l.step, ".")
	set := []string{"SLURM_STEP_ID=" + number, "SLURM_STEPID=" + number, "SLURM_STEP_NODELIST=" + list, "SLURM_STEP_NUM_NODES=" + pods,
		"SLURM_STEP_NUM_TASKS=" + tasks, "SLURM_STEP_TASKS_PER_NODE=" + each, "SLURM_NTASKS=" + tasks, "SLURM_NPROCS=" + tasks,
		"SLURM_NNODES=" + pods, "SLURM_TASKS_PER_NODE=" + each, "SLURM_SRUN_COMM_HOST=" + l.node(l.rank), "SLURM_LAUNCH_NODE_IPADDR=" + l.host(l.rank)}
	if os.Getenv("SLURM_JOB_ID") == "" {
		all := fold(l.nodes())
		set = append(set, "SLURM_JOB_ID="+l.job, "SLURM_JOBID="+l.job, "SLURM_JOB_NODELIST="+all, "SLURM_NODELIST="+all, "SLURM_JOB_NUM_NODES="+strconv.Itoa(l.size))
	}
	if asked.cpus > 1 {
		set = append(set, "SLURM_CPUS_PER_TASK="+strconv.Itoa(asked.cpus))
	}
	return set
}

// OfTask are the variables of one task, which is number `index` of its share. Its process number the pod adds.
func (y *layout) ofTask(l *launch, id int, of share, index int, asked ask) []string {
	set := []string{"SLURM_PROCID=" + strconv.Itoa(id), "SLURM_LOCALID=" + strconv.Itoa(y.local[id]), "SLURM_NODEID=" + strconv.Itoa(y.nodeOf(of.rank)),
		"SLURMD_NODENAME=" + l.node(of.rank), "SLURM_GTIDS=" + y.inPod[of.rank]}
	if os.Getenv("SLURM_CPUS_ON_NODE") != "" && of.cpus > 0 { // as the script has it, so does a task: those of its step
		set = append(set, "SLURM_CPUS_ON_NODE="+strconv.Itoa(of.cpus))
	}
	return append(set, gpusOfTask(id, of, index, asked)...)
}

// CarryOut starts everything and stays until all has ended; its result is the highest exit code.
func (l *launch) carryOut() int {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGALRM)
	within, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	if err := l.connect(within); within.Err() != nil && err != nil {
		l.lost = true
		return 128 + int((<-signals).(syscall.Signal)) // nothing has begun
	} else if err != nil {
		l.lost = true
		return complain(l.program, 1, "%v", err)
	}
	var pods sync.WaitGroup
	for index, each := range l.peers {
		if err := each.sendMessage(frameStart, &l.starts[index]); err != nil {
			l.closeAll()
			l.lost = true
			return complain(l.program, 1, "%s: not started: %v", l.host(l.starts[index].rank), err)
		}
	}
	for range l.peers {
		l.taken = append(l.taken, make(chan struct{}, 1))
	}
	for index := range l.peers {
		pods.Go(func() { l.follow(index) })
	}
	go func() { pods.Wait(); close(l.ended) }()
	if l.input != nil {
		go l.sendInput()
	}
	go l.out.flushLate(l.ended)
	l.attend(signals)
	l.closeAll()
	if err := l.out.close(); err != nil {
		return complain(l.program, max(l.highest, 1), "output: %v", err)
	}
	if l.lost {
		return max(l.highest, 1)
	}
	return l.highest
}

// Connect reaches every pod of the step before anything is started in one, and says whom it waits for.
func (l *launch) connect(within context.Context) error {
	l.peers = make([]*peer, len(l.starts))
	failures := make([]error, len(l.starts))
	places := make(chan struct{}, dialsAtOnce)
	var dials sync.WaitGroup
	defer time.AfterFunc(tellAfter, l.sayLate).Stop()
	for index := range l.starts {
		host := l.address(l.starts[index].rank)
		dials.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			p, err := dialPatiently(within, l.patience, l.identity, host, l.port)
			if err == nil {
				go p.keepAlive() // others may be waited for
			}
			l.lock.Lock()
			defer l.lock.Unlock()
			l.peers[index], failures[index] = p, err
		})
	}
	dials.Wait()
	if err := errors.Join(failures...); err != nil {
		l.closeAll()
		return err
	}
	return nil
}

func (l *launch) sayLate() {
	l.lock.Lock()
	defer l.lock.Unlock()
	var late []string
	for index, each := range l.peers {
		if each == nil {
			late = append(late, l.node(l.starts[index].rank))
		}
	}
	fmt.Fprintf(os.Stderr, "%s: not reached yet: %s\n", l.program, fold(late))
}

func (l *launch) closeAll() {
	for _, each := range l.peers {
		if each != nil {
			each.Close()
		}
	}
}

// DialPatiently tries again for a while: a name may be new, or the pod busy with strangers.
func dialPatiently(within context.Context, patience time.Duration, config *tls.Config, host, port string) (*peer, error) {
	within, cancel := context.WithTimeout(within, patience)
	defer cancel()
	for {
		p, err := dial(within, config, host, port)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, errStranger) {
			select {
			case <-time.After(retryEvery):
				continue
			case <-within.Done():
			}
		}
		return nil, fmt.Errorf("%s: not reached: %w", host, err)
	}
}

// Follow takes what a pod says until its tasks have ended or it is gone.
func (l *launch) follow(index int) {
	p, start := l.peers[index], l.starts[index]
	defer close(l.taken[index])
	for {
		kind, payload, err := p.receive()
		var exited exitedMessage
		var asked pmiMessage
		switch {
		case err == nil && kind == frameOutput && len(payload) > 5:
			err = l.out.write(payload)
		case err == nil && kind == frameExited && decode(payload, &exited) == nil:
			l.exited(exited)
		case err == nil && kind == framePMI && l.pmi != nil && decode(payload, &asked) == nil:
			l.giveUp(l.pmi.take(p, asked))
		case err == nil && kind == frameTaken:
			select {
			case l.taken[index] <- struct{}{}:
			default:
			}
		case err == nil && kind == frameDone:
			p.Close()
			return
		case err == nil && kind == frameRefused:
			err = refusal(payload)
		case err == nil:
			err = fmt.Errorf("an answer of kind %d", kind)
		}
		if err != nil {
			p.Close()
			l.lose(start, err)
			return
		}
	}
}

// Lose counts a pod out that is gone, and ends the step.
func (l *launch) lose(start startMessage, err error) {
	l.lock.Lock()
	l.lost = true
	for _, each := range start.tasks {
		delete(l.running, each.id)
	}
	l.lock.Unlock()
	complain(l.program, 1, "%s: pod %s is gone in the middle of step %s: %v", l.node(start.rank), l.host(start.rank), l.step, err)
	l.send(syscall.SIGKILL)
}

func (l *launch) exited(how exitedMessage) {
	l.lock.Lock()
	node := l.running[how.task]
	delete(l.running, how.task)
	l.highest = max(l.highest, how.code)
	left, first := len(l.running), !l.ending
	terminate := how.code != 0 && l.onBad && left > 0 && first
	l.ending = l.ending || terminate
	l.lock.Unlock()
	if how.signaled {
		name := syscall.Signal(how.code - 128).String()
		complain(l.program, 0, "%s: task %d: %s", node, how.task, strings.ToUpper(name[:1])+name[1:])
	} else if how.code != 0 {
		complain(l.program, 0, "%s: task %d: Exited with exit code %d", node, how.task, how.code)
	}
	if l.pmi != nil {
		l.giveUp(l.pmi.ended(how.task))
	}
	if terminate {
		fmt.Fprintf(os.Stderr, "%s: Terminating StepId=%s\n", l.program, l.step)
		l.terminate()
	} else if l.wait > 0 && first && left > 0 {
		l.lock.Lock()
		l.ending = true
		l.lock.Unlock()
		time.AfterFunc(l.wait, func() {
			fmt.Fprintf(os.Stderr, "%s: First task exited %.0fs ago\n%s: Terminating StepId=%s\n", l.program, l.wait.Seconds(), l.program, l.step)
			l.send(syscall.SIGKILL)
		})
	}
}

// GiveUp ends a step whose tasks would wait for each other for ever.
func (l *launch) giveUp(why error) {
	l.lock.Lock()
	first := why != nil && !l.ending
	if first {
		l.ending, l.highest = true, max(l.highest, 1)
	}
	l.lock.Unlock()
	if first {
		complain(l.program, 1, "%v", why)
		fmt.Fprintf(os.Stderr, "%s: Terminating StepId=%s\n", l.program, l.step)
		l.terminate()
	}
}

// Terminate ends the tasks, those that do not heed it after killWait.
func (l *launch) terminate() {
	l.send(syscall.SIGTERM)
	time.AfterFunc(killWait, func() { l.send(syscall.SIGKILL) })
}

func (l *launch) send(wanted syscall.Signal) {
	for _, each := range l.peers {
		go each.sendMessage(frameSignal, &signalMessage{int(wanted)})
	}
}

// Attend hands signals to every task until all have ended. A second Ctrl-C within a second kills.
func (l *launch) attend(signals <-chan os.Signal) {
	var interrupted time.Time
	for {
		var each os.Signal
		select {
		case <-l.ended:
			return
		case each = <-signals:
		case each = <-l.outside:
		}
		switch {
		case each == syscall.SIGTERM:
			l.terminate()
		case each == syscall.SIGINT && time.Since(interrupted) < time.Second:
			l.send(syscall.SIGKILL)
		default:
			l.send(each.(syscall.Signal))
		}
		if each == syscall.SIGINT {
			interrupted = time.Now()
		}
	}
}

// SendInput gives the input piece by piece to every pod with tasks that read, the next when all took the last.
func (l *launch) sendInput() {
	buffer := make([]byte, inputBytes)
	for {
		length, err := l.input.Read(buffer)
		sent := []int{}
		for index, each := range l.peers {
			reads := slices.ContainsFunc(l.starts[index].tasks, func(t taskStart) bool { return t.reads })
			if reads && (length > 0 || err != nil) && each.send(frameInput, buffer[:max(length, 0)]) == nil {
				sent = append(sent, index)
			}
		}
		for _, index := range sent {
			<-l.taken[index]
		}
		if err != nil && length <= 0 {
			return
		}
	}
}
