package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	handshakesAtMost = 64
	runnerProcessors = 4                // at most; Go keeps memory for each that it may use
	joinPatience     = 10 * time.Minute // a pod's image may take that long to come
	lossPatience     = 30 * time.Second // how long a pod and the first one may not reach each other
	retryEvery       = 200 * time.Millisecond
)

// Runner is what runs in a pod in front of everything else.
type runner struct {
	run
	identity  *tls.Config
	processes *children
	own       []string // environment of this pod's processes
	first     *firstPod
	warning   warning
	lock      sync.Mutex
	sessions  map[*session]bool
}

// Pod runs the command in the first pod of a run, and serves steps in each. Its exit code is the command's there and 0
// in the others, once they are told that the run ends.
func pod(command []string) int {
	debug.SetGCPercent(20) // little lives here, and a pod's memory is its program's
	runtime.GOMAXPROCS(min(runtime.NumCPU(), runnerProcessors))
	r, err := newRunner()
	if err != nil {
		return complain("tessera-steps", 1, "%v", err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP)
	address := ":" + r.port
	if net.ParseIP(r.host(r.rank)) != nil {
		address = net.JoinHostPort(r.host(r.rank), r.port)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return complain("tessera-steps", 1, "steps cannot be served: %v", err)
	}
	go r.accept(listener)
	if r.rank == 0 {
		return r.runCommand(command, signals)
	}
	go func() {
		for each := range signals {
			_, tasks := r.warning.of(each.(syscall.Signal))
			r.hand(tasks)
		}
	}()
	return r.stay()
}

func newRunner() (*runner, error) {
	found, err := thisRun()
	if err != nil {
		return nil, err
	}
	key, err := readKey(found.key)
	if err != nil {
		return nil, err
	}
	config, err := identity(key)
	if err != nil {
		return nil, err
	}
	warned, err := readWarning()
	if err != nil {
		return nil, err
	}
	r := &runner{run: found, identity: config, warning: warned, sessions: map[*session]bool{}, processes: newChildren()}
	r.own = podEnvironment(os.Environ(), os.Getpid())
	if r.rank == 0 {
		r.first = newFirstPod(found)
		r.first.join(nil, &joinMessage{cpus: processors(), gpus: ownGPUs()})
	}
	return r, nil
}

// PodEnvironment is what the processes of a pod begin with: the container's own, with the programs of steps on PATH.
func podEnvironment(container []string, pid int) []string {
	path := valueOf(container, "PATH")
	if path == "" {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	var launched []string
	if program, err := os.Executable(); err == nil {
		binaries := filepath.Dir(program)
		path = binaries + ":" + path + ":" + filepath.Join(filepath.Dir(binaries), "fallback")
		launched = launcherVariables(container, filepath.Dir(binaries))
	}
	return changed(container, append(launched, "PATH="+path, "TESSERA_STEPS_PATH="+path, "TESSERA_STEPS_PID="+strconv.Itoa(pid)), nil)
}

// Processors are the CPUs that steps share here: what Slurm's variable says, else the container's limit.
func processors() int {
	if said, err := strconv.Atoi(os.Getenv("SLURM_CPUS_ON_NODE")); err == nil && said > 0 {
		return said
	}
	limit, _ := os.ReadFile("/sys/fs/cgroup/cpu.max")
	if quota, period, found := strings.Cut(strings.TrimSpace(string(limit)), " "); found {
		share, err := strconv.Atoi(quota)
		of, err2 := strconv.Atoi(period)
		if err == nil && err2 == nil && of > 0 {
			return max(1, (share+of-1)/of)
		}
	}
	return runtime.NumCPU()
}

func ownGPUs() []string {
	if visible := os.Getenv("CUDA_VISIBLE_DEVICES"); visible != "" {
		return strings.Split(visible, ",")
	}
	count, _ := strconv.Atoi(os.Getenv("SLURM_GPUS_ON_NODE"))
	gpus := []string{}
	for index := range min(max(count, 0), 1024) {
		gpus = append(gpus, strconv.Itoa(index))
	}
	return gpus
}

// Accept serves connections; of those that have not proved the key there are at most so many, for so long.
func (r *runner) accept(listener net.Listener) {
	places := make(chan struct{}, handshakesAtMost)
	for {
		connection, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors are left, for now
			time.Sleep(retryEvery)
			continue
		}
		select {
		case places <- struct{}{}:
			go func() {
				p := r.handshake(connection)
				<-places
				if p != nil {
					r.serve(p)
				}
			}()
		default:
			connection.Close()
		}
	}
}

func (r *runner) handshake(connection net.Conn) *peer {
	secured := tls.Server(connection, r.identity)
	within, cancel := context.WithTimeout(context.Background(), handshakeTime)
	defer cancel()
	if secured.HandshakeContext(within) != nil {
		connection.Close()
		return nil
	}
	return newPeer(secured)
}

// Serve answers the first frame of a connection, which says what it is for.
func (r *runner) serve(p *peer) {
	defer p.Close()
	kind, payload, err := p.receive()
	if err != nil {
		return
	}
	go p.keepAlive()
	var joins joinMessage
	var allocates allocateMessage
	var wants wishMessage
	var starts startMessage
	meant := func(rank int) bool { return rank == r.rank || rank == anyPod }
	switch {
	case kind == frameJoin && decode(payload, &joins) == nil && meant(joins.rank) && r.first != nil:
		r.first.keep(p, &joins)
	case kind == frameAllocate && decode(payload, &allocates) == nil && meant(allocates.rank) && r.first != nil:
		r.first.allocate(p, &allocates)
	case kind == frameWish && decode(payload, &wants) == nil && meant(wants.rank) && r.first != nil:
		r.serveWish(p, &wants)
	case kind == frameStart && decode(payload, &starts) == nil && meant(starts.rank):
		s := newSession(p, starts, r.own)
		r.register(s, true)
		s.serve(r.processes)
		r.register(s, false)
		debug.FreeOSMemory()
	default:
		p.send(frameRefused, fmt.Appendf(nil, "pod %d does not serve a frame of kind %d that is for another pod or cannot be read", r.rank, kind))
	}
}

func (r *runner) register(s *session, there bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if there {
		r.sessions[s] = true
	} else {
		delete(r.sessions, s)
	}
}

// Hand hands a signal that reached the runner to all steps' processes of the pod; 0 is none.
func (r *runner) hand(wanted syscall.Signal) {
	if wanted == 0 {
		return
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	for each := range r.sessions {
		each.signal(wanted)
	}
}

// RunCommand runs the command of the run, once; then the run ends.
func (r *runner) runCommand(command []string, signals <-chan os.Signal) int {
	path, err := findProgram(command[0], ".", r.own)
	if err != nil {
		r.first.end(false)
		return complain("tessera-steps", 127-boolAsInt(err == syscall.EACCES), "%s: %v", command[0], err)
	}
	folder, _ := os.Getwd()
	pid, ended, err := r.processes.start(path, command, &syscall.ProcAttr{Dir: folder, Env: r.own, Files: []uintptr{0, 1, 2}})
	if err != nil {
		r.first.end(false)
		return complain("tessera-steps", 126, "%s: %v", command[0], err)
	}
	told := false
	r.first.commandRuns(pid)
	go r.endAtWish(pid)
	for {
		select {
		case each := <-signals:
			told = told || each != syscall.SIGUSR1 && each != syscall.SIGUSR2
			command, tasks := r.warning.of(each.(syscall.Signal))
			if command != 0 {
				syscall.Kill(pid, command)
			}
			r.hand(tasks)
		case status := <-ended:
			code := r.first.sayLastWord(exitCode(status))
			r.processes.end()
			r.first.end(code == 0 && !told)
			return code
		}
	}
}

// Stay keeps a connection to the first pod until that says that the run ends.
func (r *runner) stay() int {
	defer r.processes.end()
	began, joined := time.Now(), false
	var last error
	for {
		p, err := r.dial(0)
		if err == nil {
			err = p.sendMessage(frameJoin, &joinMessage{rank: 0, from: r.rank, cpus: processors(), gpus: ownGPUs()})
			go p.keepAlive()
			for kind := frameKind(0); err == nil; {
				if kind, _, err = p.receive(); err == nil && kind == frameEnd {
					p.send(frameDone, nil)
					p.Close()
					return 0
				}
				if err == nil && kind == frameWaiting {
					joined = true
				}
			}
			p.Close()
			if joined {
				began = time.Now()
			}
		}
		last = err
		patience := joinPatience
		if joined {
			patience = lossPatience
		}
		if time.Since(began) > patience {
			return complain("tessera-steps", 1, "pod %d has not reached the first pod, %s, for %.0f s: %v", r.rank, r.host(0), patience.Seconds(), last)
		}
		time.Sleep(retryEvery)
	}
}

// Dial connects to a pod of the run and proves the key to it, once.
func (r *runner) dial(rank int) (*peer, error) {
	return dial(context.Background(), r.identity, r.address(rank), r.port)
}

func dial(within context.Context, config *tls.Config, host, port string) (*peer, error) {
	within, cancel := context.WithTimeout(within, handshakeTime)
	defer cancel()
	dialer := tls.Dialer{Config: config}
	connection, err := dialer.DialContext(within, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, err
	}
	return newPeer(connection.(*tls.Conn)), nil
}

// FirstPod knows the pods of the run, numbers its steps and gives each its place.
type firstPod struct {
	run
	began   time.Time
	lock    sync.Mutex
	rooms   []room
	members []member
	steps   int
	changed chan struct{} // closed and made anew when a place came free or a pod came or went
	ending  bool
	asked   wishes
}

type member struct {
	joined bool
	peer   *peer // nil: it is away
	since  time.Time
	told   bool // that the run ends
}

func newFirstPod(found run) *firstPod {
	f := &firstPod{run: found, began: time.Now(), rooms: make([]room, found.size), members: make([]member, found.size), changed: make(chan struct{}), asked: newWishes()}
	return f
}

// Slots are the tasks of a pod by the job's own word; a pod has a CPU for each of these at least.
func (f *firstPod) slots(rank int) int {
	if said, err := counts(os.Getenv("SLURM_TASKS_PER_NODE")); err == nil && rank < len(said) {
		return said[rank]
	}
	return 1
}

func (f *firstPod) signalChange() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *firstPod) join(p *peer, message *joinMessage) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if rank := message.from; !f.members[rank].joined {
		cpus := max(message.cpus, f.slots(rank))
		f.rooms[rank] = room{rank: rank, cpus: cpus, freeCPUs: cpus, gpus: message.gpus, freeGPUs: message.gpus}
	}
	f.members[message.from] = member{joined: true, peer: p, since: time.Now()}
	f.signalChange()
}

// Keep holds a pod's connection: while it lasts the pod is there.
func (f *firstPod) keep(p *peer, message *joinMessage) {
	if message.from <= 0 || message.from >= f.size {
		return
	}
	f.join(p, message)
	p.send(frameWaiting, nil)
	f.lock.Lock()
	ending := f.ending
	f.lock.Unlock()
	if ending {
		p.send(frameEnd, nil)
	}
	kind, err := frameKind(0), error(nil)
	for err == nil && kind != frameDone {
		kind, _, err = p.receive()
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.members[message.from].peer == p {
		f.members[message.from] = member{joined: true, since: time.Now(), told: err == nil}
		f.signalChange()
	}
}

// End tells every pod that the run ends. It waits for those that are there, and where the run ended well also for those
// that were lost a moment ago or have not started yet: a pod that finds no first one ends with an error.
func (f *firstPod) end(well bool) {
	f.lock.Lock()
	f.ending = true
	for _, each := range f.members {
		if each.peer != nil {
			go each.peer.send(frameEnd, nil)
		}
	}
	f.lock.Unlock()
	for ended := time.Now(); ; {
		f.lock.Lock()
		var missing, late []string
		for rank, each := range f.members {
			switch {
			case rank == 0 || each.told:
			case each.peer != nil && time.Since(ended) < handshakeTime,
				well && each.joined && each.peer == nil && time.Since(each.since) < lossPatience,
				well && !each.joined && time.Since(f.began) < joinPatience:
				missing = append(missing, f.node(rank))
			default:
				late = append(late, f.node(rank))
			}
		}
		changed := f.changed
		f.lock.Unlock()
		if len(missing) == 0 {
			if len(late) > 0 {
				fmt.Fprintf(os.Stderr, "tessera-steps: not told that the run ends: %s\n", fold(late))
			}
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		}
	}
}

// Allocate gives a step its number and its place, in time, and keeps both until the connection ends.
func (f *firstPod) allocate(p *peer, message *allocateMessage) {
	parts := message.parts
	for _, each := range parts {
		if each.tasks < 1 || each.nodes < 0 || each.first < 0 || each.cpus < 0 || each.tasks > hostsAtMost {
			p.send(frameRefused, []byte("numbers of tasks, nodes and CPUs are from 1 on"))
			return
		}
	}
	gone, how := make(chan struct{}), exitedMessage{}
	go func() {
		for {
			kind, payload, err := p.receive()
			if err != nil || kind == frameDone && decode(payload, &how) != nil {
				how.code = killedExitCode
			}
			if err != nil || kind == frameDone {
				close(gone)
				return
			}
		}
	}()
	told, begun := "", time.Now()
	for {
		f.lock.Lock()
		shares, err := f.place(parts)
		if err == nil {
			take(f.rooms, shares, 1)
			granted := grantedMessage{step: f.steps, shares: shares}
			f.steps++
			f.beginStep(granted.step, message.name, shares, p)
			f.lock.Unlock()
			if p.sendMessage(frameGranted, &granted) != nil {
				p.Close()
			}
			<-gone
			f.lock.Lock()
			f.endStep(granted.step, how.code)
			take(f.rooms, shares, -1)
			f.signalChange()
			f.lock.Unlock()
			return
		}
		changed := f.changed
		f.lock.Unlock()
		var joining stillJoining
		if !errors.As(err, &joining) && err != busy || time.Since(begun) > joinPatience && err != busy {
			p.send(frameRefused, []byte(err.Error()))
			return
		}
		if told != err.Error() && (err == busy || time.Since(begun) > 5*time.Second) {
			told = err.Error()
			p.send(frameWaiting, []byte(told))
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-gone:
			return
		}
	}
}

// StillJoining is a wait for pods that are not there, or not any more.
type stillJoining string

func (s stillJoining) Error() string { return string(s) }

func (f *firstPod) place(parts []ask) ([]share, error) {
	var missing []string
	for rank, each := range f.members {
		if !each.joined {
			missing = append(missing, f.node(rank))
		}
	}
	if len(missing) > 0 {
		return nil, stillJoining("not started yet: " + fold(missing))
	}
	shares, err := placeStep(f.rooms, parts)
	for _, each := range shares {
		if m := f.members[each.rank]; each.rank > 0 && m.peer == nil {
			if time.Since(m.since) > lossPatience {
				return nil, refusal("pod " + f.node(each.rank) + " is gone: the run cannot use it any more")
			}
			return nil, stillJoining("not reached: " + f.node(each.rank))
		}
	}
	return slices.Clip(shares), err
}
