package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// What a script may wish of its own job. The first two end the run, and stand in the last word of its pod.
const (
	wishRequeue = "requeue"
	wishCancel  = "cancel"
	wishSignal  = "signal" // a signal for the steps, or for the command of the run
	wishEndStep = "end step"
)

const (
	allSteps  = -1
	batchStep = -2 // the command of the run itself
)

// WishMessage asks the first pod for something that concerns the run as a whole.
type wishMessage struct {
	rank   int
	wish   string
	who    string
	signal int
	step   int
}

func (m *wishMessage) fields(c *coder) {
	c.number(&m.rank)
	c.text(&m.wish)
	c.text(&m.who)
	c.number(&m.signal)
	c.number(&m.step)
}

// Wish carries a wish to the first pod. Its error says why that does not grant it.
func wish(message wishMessage) error {
	r, config, err := runAndIdentity()
	if err != nil {
		return err
	}
	p, err := dialPatiently(context.Background(), lossPatience, config, r.address(0), r.port)
	if err != nil {
		return err
	}
	defer p.Close()
	signal.Ignore(syscall.SIGTERM) // which this wish may bring upon all that the script started
	message.who = whoAsks(message.who, r)
	if err := p.sendMessage(frameWish, &message); err != nil {
		return err
	}
	kind, payload, err := p.receive()
	switch {
	case err != nil:
		return fmt.Errorf("the first pod, %s, is gone: %w", r.host(0), err)
	case kind == frameRefused:
		return refusal(payload)
	case kind != frameDone:
		return fmt.Errorf("an answer of kind %d", kind)
	}
	return nil
}

// WhoAsks says for the job's story what asked, and where.
func whoAsks(command string, r run) string {
	where := "the script, in " + r.node(r.rank)
	if step, task := os.Getenv("SLURM_STEP_ID"), os.Getenv("SLURM_PROCID"); step != "" {
		where = fmt.Sprintf("task %s of step %s, in %s", task, step, r.node(r.rank))
	}
	return command + " by " + where
}

// ServeWish answers a wish, and does what it says.
func (r *runner) serveWish(p *peer, wanted *wishMessage) {
	if err := r.first.grant(wanted); err != nil {
		p.send(frameRefused, []byte(err.Error()))
		return
	}
	p.send(frameDone, nil)
}

// Wishes are what the run was asked for, and what of it can still be ended.
type wishes struct {
	ask, who string
	ends     chan struct{} // closed when the run is to end
	ended    chan struct{} // closed when its command has ended
	command  int           // the process of that; 0: it has ended, or not begun
	steps    stepList
	live     map[int]*peer // of the steps that run: their srun
}

func newWishes() wishes {
	return wishes{ends: make(chan struct{}), ended: make(chan struct{}), live: map[int]*peer{}}
}

func (f *firstPod) grant(wanted *wishMessage) error {
	f.lock.Lock()
	defer f.lock.Unlock()
	switch wanted.wish {
	case wishRequeue, wishCancel:
		if f.asked.ask == wanted.wish {
			return nil
		}
		if f.asked.ask == wishCancel {
			return refusal("the job is being cancelled already")
		}
		if f.asked.command == 0 {
			return refusal("the script has ended")
		}
		if err := mayWriteWord(); err != nil {
			return refusal(fmt.Sprintf("this pod has no file for its last word: %v", err))
		}
		if f.asked.ask == "" {
			close(f.asked.ends)
		}
		f.asked.ask, f.asked.who = wanted.wish, wanted.who
	case wishSignal:
		return f.signalSteps(wanted.step, syscall.Signal(wanted.signal))
	case wishEndStep:
		return f.signalSteps(wanted.step, syscall.SIGTERM)
	default:
		return refusal(fmt.Sprintf("%q is no wish that a run grants", wanted.wish))
	}
	return nil
}

// SignalSteps hands a signal to a step, to all, or to the command; its caller holds the lock.
func (f *firstPod) signalSteps(step int, wanted syscall.Signal) error {
	if wanted <= 0 || wanted > 64 {
		return refusal("that is no signal")
	}
	if step == batchStep {
		if f.asked.command == 0 {
			return refusal("the script has ended")
		}
		return syscall.Kill(f.asked.command, wanted)
	}
	if step != allSteps && f.asked.live[step] == nil {
		return refusal(fmt.Sprintf("step %d: no such step runs", step))
	}
	for number, each := range f.asked.live {
		if step == allSteps || step == number {
			go each.sendMessage(frameSignal, &signalMessage{int(wanted)})
		}
	}
	return nil
}

// EndAtWish ends the command and the steps of a run as Slurm does, once that is asked for: SIGTERM, and SIGKILL to
// those that do not heed it.
func (r *runner) endAtWish(command int) {
	select {
	case <-r.first.asked.ends:
	case <-r.first.asked.ended:
		return
	}
	r.signalRun(command, syscall.SIGCONT)
	r.signalRun(command, syscall.SIGTERM)
	select {
	case <-time.After(killWait):
		r.signalRun(command, syscall.SIGKILL)
	case <-r.first.asked.ended:
	}
}

// SignalRun reaches the command with all that it started, and the steps, also those whose srun was left alone.
func (r *runner) signalRun(command int, wanted syscall.Signal) {
	for _, each := range descendants(command) {
		syscall.Kill(each, wanted)
	}
	r.hand(wanted)
	r.first.lock.Lock()
	defer r.first.lock.Unlock()
	r.first.signalSteps(allSteps, wanted)
}

// Descendants are a process and those that it started, and they, as far as they were not left to another.
func descendants(root int) []int {
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		fields, err := statFields(pid)
		if err != nil {
			continue // gone meanwhile
		}
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
	}
	found := []int{root}
	for index := 0; index < len(found); index++ {
		found = append(found, children[found[index]]...)
	}
	return found
}

// StatFields are what the kernel says of a process behind its name: its state, its parent and so on.
func statFields(pid int) ([]string, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return fields, nil
}

// CommandRuns notes the process of the run's command: from now on there is something to end.
func (f *firstPod) commandRuns(pid int) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.asked.command = pid
}

// BeginStep notes a step that got its place, and endStep its end; their caller holds the lock.
func (f *firstPod) beginStep(number int, name string, shares []share, p *peer) {
	tasks := 0
	for _, each := range shares {
		tasks += each.tasks
	}
	f.asked.steps.begin(number, cut(name, nameBytes), tasks, time.Now())
	f.asked.live[number] = p
}

func (f *firstPod) endStep(number, code int) {
	delete(f.asked.live, number)
	f.asked.steps.end(number, code, time.Now())
}

// SayLastWord leaves the word in the pod's termination message once the command has ended. The exit code is the run's:
// that of its command, but for a run that its script wants to begin anew, or to be cancelled.
func (f *firstPod) sayLastWord(code int) int {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.asked.command = 0
	close(f.asked.ended)
	f.asked.steps.endAll(time.Now())
	if err := writeWord(f.asked.ask, f.asked.who, &f.asked.steps); err != nil && !os.IsNotExist(err) {
		fmt.Fprintf(os.Stderr, "tessera-steps: its last word cannot be left: %v\n", err)
	}
	if f.asked.ask == "" {
		return code
	}
	return wordExitCode
}

// OwnJob are the names that this job has; the first one is shown.
func ownJob() []string {
	names := []string{}
	for _, variable := range []string{"SLURM_JOB_ID", "SLURM_JOBID", "TESSERA_JOB_NUMBER", "TESSERA_JOB_ID"} {
		if name := os.Getenv(variable); name != "" {
			names = append(names, name)
		}
	}
	if task := cmp.Or(os.Getenv("SLURM_ARRAY_TASK_ID"), os.Getenv("TESSERA_ARRAY_TASK")); task != "" {
		for _, variable := range []string{"SLURM_ARRAY_JOB_ID", "TESSERA_ARRAY_NUMBER", "TESSERA_ARRAY_ID"} {
			if array := os.Getenv(variable); array != "" {
				names = append(names, array+"_"+task)
			}
		}
	}
	return names
}

const elsewhere = "a pod speaks of its own job alone"

// IsOwnJob is nil where a name means this job, else an error that says what to write where.
func isOwnJob(name, command string) error {
	own := ownJob()
	for _, each := range own {
		if name == each {
			return nil
		}
	}
	if len(own) == 0 {
		return fmt.Errorf("SLURM_JOB_ID is not set: this is no pod of a job")
	}
	return fmt.Errorf("job %s is not this one, %s: %s: on the machine from which you submit, write %s %s", name, own[0], elsewhere, command, name)
}

// StepOf reads JOB, JOB.STEP or JOB.batch: the job, and the step it names, which is allSteps where it names none.
func stepOf(name string) (string, int, error) {
	job, step, named := strings.Cut(name, ".")
	if !named {
		return job, allSteps, nil
	}
	if step == "batch" {
		return job, batchStep, nil
	}
	number, err := strconv.Atoi(step)
	if err != nil || number < 0 {
		return job, 0, fmt.Errorf("%s: %q is no step: write %s.0 or %s.batch", name, step, job, job)
	}
	return job, number, nil
}

// SignalNamed is a signal by number or name, with SIG before it or not.
func signalNamed(text string) (syscall.Signal, error) {
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if number, err := strconv.Atoi(name); err == nil && number > 0 && number <= 64 {
		return syscall.Signal(number), nil
	}
	if found, known := signalsToSend[name]; known {
		return found, nil
	}
	return 0, fmt.Errorf("%q is no signal: write TERM, INT, USR1 and the like, or a number", text)
}

var signalsToSend = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "ABRT": syscall.SIGABRT, "KILL": syscall.SIGKILL,
	"ALRM": syscall.SIGALRM, "TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "URG": syscall.SIGURG,
	"CONT": syscall.SIGCONT, "STOP": syscall.SIGSTOP, "TSTP": syscall.SIGTSTP, "TTIN": syscall.SIGTTIN, "TTOU": syscall.SIGTTOU,
}

// Requeue asks that the own job begins anew.
func requeue(named []string) int {
	if len(named) == 0 {
		named = ownJob()[:min(1, len(ownJob()))]
	}
	for _, word := range named {
		for _, each := range strings.Split(word, ",") {
			if err := isOwnJob(each, "tessera scontrol requeue"); err != nil {
				return complain("scontrol", 1, "requeue: %v", err)
			}
		}
	}
	if err := wish(wishMessage{wish: wishRequeue, who: "scontrol requeue"}); err != nil {
		return complain("scontrol", 1, "requeue: %v", err)
	}
	return 0
}

// Hear takes signals from the first pod for the tasks of a step, until the step has given its place back.
func (l *launch) hear(held *peer) {
	for {
		kind, payload, err := held.receive()
		var wanted signalMessage
		if err != nil {
			held.Close()
			return
		}
		if kind == frameSignal && decode(payload, &wanted) == nil {
			select {
			case l.outside <- syscall.Signal(wanted.signal):
			default: // more than tasks can be told at once
			}
		}
	}
}

// GiveBack says how the step ended. Its place is free before this program has ended: the next step finds it so.
func giveBack(held *peer, code int) int {
	held.sendMessage(frameDone, &exitedMessage{code: code})
	select {
	case <-held.ended:
	case <-time.After(silenceAtMost):
	}
	held.Close()
	return code
}
