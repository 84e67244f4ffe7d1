package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// OrphansAtMost is how long output is read from what a task left behind, each time that none comes.
const orphansAtMost = 200 * time.Millisecond

// Session is the tasks of one Start in this pod, and the connection that they belong to: they end with it.
type session struct {
	peer    *peer
	start   startMessage
	own     []string // the pod's environment
	lock    sync.Mutex
	running map[int]*task
	groups  []int
	files   map[string]*os.File
}

func newSession(p *peer, start startMessage, own []string) *session {
	return &session{peer: p, start: start, own: own, running: map[int]*task{}, files: map[string]*os.File{}}
}

type task struct {
	pid    int
	stdin  *os.File // nil: it reads nothing from here
	output []*os.File
	ended  <-chan syscall.WaitStatus

	pmi     *os.File // nil: it has no such socket
	answers chan string
}

// Serve starts the tasks and stays until the last has ended or the connection broke.
func (s *session) serve(processes *children) {
	var tasks sync.WaitGroup
	for _, each := range s.start.tasks {
		started, err := s.startTask(processes, each)
		if err != nil {
			s.refuse(each, err)
			continue
		}
		s.lock.Lock()
		s.running[each.id] = started
		s.groups = append(s.groups, started.pid)
		s.lock.Unlock()
		tasks.Go(func() { s.follow(each.id, started) })
		if started.pmi != nil {
			go s.passOn(each.id, started)
		}
	}
	for _, file := range s.files {
		file.Close()
	}
	go s.listen()
	tasks.Wait()
	s.peer.send(frameDone, nil)
	select {
	case <-s.peer.ended:
	case <-time.After(silenceAtMost):
	}
	s.peer.Close()
}

// Listen takes signals and input until the connection ends, and its tasks with it.
func (s *session) listen() {
	defer s.peer.Close()
	inputs := make(chan []byte, 1)
	defer close(inputs)
	go func() {
		for chunk := range inputs {
			s.input(chunk)
		}
	}()
	for {
		kind, payload, err := s.peer.receive()
		if err != nil {
			break
		}
		var wanted signalMessage
		var answered pmiMessage
		switch {
		case kind == framePMI && decode(payload, &answered) == nil:
			s.answer(answered)
			continue
		case kind == frameSignal && decode(payload, &wanted) == nil:
			s.signal(syscall.Signal(wanted.signal))
			continue
		case kind == frameInput:
			select {
			case inputs <- payload:
				continue
			default: // more than was asked for
			}
		}
		break
	}
	s.signal(syscall.SIGKILL)
}

func (s *session) startTask(processes *children, wanted taskStart) (*task, error) {
	if wanted.program < 0 || wanted.program >= len(s.start.programs) || len(s.start.programs[wanted.program]) == 0 {
		return nil, errors.New("no program")
	}
	argv, environment, folder := s.start.programs[wanted.program], s.environment(wanted), s.folder(wanted)
	path, err := findProgram(argv[0], folder, environment)
	if err != nil {
		return nil, err
	}
	var streams taskStreams
	defer streams.closeTheirs()
	if err = s.openStreams(&streams, wanted); err == nil && s.start.pmi {
		err = streams.socket()
	}
	started := &task{stdin: streams.stdin, output: streams.output, pmi: streams.pmi, answers: make(chan string, 1)}
	if err == nil {
		if own, err := os.Executable(); err == nil && !s.start.keepOrphan {
			argv, path = append([]string{"tessera-steps", "task", path}, argv...), own
		}
		attributes := &syscall.ProcAttr{Dir: folder, Env: environment, Files: streams.theirs, Sys: &syscall.SysProcAttr{Setpgid: true}}
		if started.pid, started.ended, err = processes.start(path, argv, attributes); err == nil {
			return started, nil
		}
	}
	started.close()
	return nil, err
}

// TaskStreams are the ends of a task's streams: its own, and ours of those that go through the connection.
type taskStreams struct {
	theirs []uintptr
	closed []*os.File // after the start
	stdin  *os.File
	output []*os.File
	pmi    *os.File
}

func (t *taskStreams) closeTheirs() {
	for _, each := range t.closed {
		each.Close()
	}
}

func (t *taskStreams) add(file *os.File) {
	t.closed, t.theirs = append(t.closed, file), append(t.theirs, file.Fd())
}

// Pipe gives the task one end of a pipe and returns the other, which is number `ours`.
func (t *taskStreams) pipe(ours int) (*os.File, error) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return nil, err
	}
	t.add(os.NewFile(uintptr(ends[1-ours]), "pipe"))
	syscall.SetNonblock(ends[ours], true) // so that a deadline can end a read
	return os.NewFile(uintptr(ends[ours]), "pipe"), nil
}

func (s *session) openStreams(streams *taskStreams, wanted taskStart) error {
	var err error
	if wanted.reads {
		streams.stdin, err = streams.pipe(1)
	} else {
		var file *os.File
		if file, err = os.Open(cmp.Or(wanted.input, os.DevNull)); err == nil {
			streams.add(file)
		}
	}
	for _, name := range []string{wanted.output, wanted.errors} {
		if err != nil {
			return err
		}
		if name == "" {
			var ours *os.File
			ours, err = streams.pipe(0)
			streams.output = append(streams.output, ours)
			continue
		}
		var file *os.File
		if file, err = s.outputFile(name); err == nil {
			streams.theirs, streams.output = append(streams.theirs, file.Fd()), append(streams.output, nil)
		}
	}
	return err
}

// OutputFile opens a file once for all tasks that write into it.
func (s *session) outputFile(name string) (*os.File, error) {
	if file := s.files[name]; file != nil {
		return file, nil
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if !s.start.appends {
		flags |= os.O_TRUNC
	}
	file, err := os.OpenFile(name, flags, 0o666)
	if err == nil {
		s.files[name] = file
	}
	return file, err
}

func (s *session) environment(wanted taskStart) []string {
	environment := s.own
	if s.start.bare {
		environment = slices.DeleteFunc(slices.Clone(environment), func(each string) bool { return !ofTheRun(each) })
	}
	return changed(changed(environment, s.start.set, s.start.unset), wanted.set, nil)
}

// OfTheRun says whether a variable belongs to the run rather than to its program's environment.
func ofTheRun(variable string) bool {
	for _, prefix := range []string{"SLURM_", "SLURMD_", "TESSERA_", "CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=", "ROCR_VISIBLE_DEVICES="} {
		if strings.HasPrefix(variable, prefix) {
			return true
		}
	}
	return false
}

func (s *session) folder(wanted taskStart) string {
	folder := s.start.folder
	if folder == "" {
		folder, _ = os.Getwd()
	} else if found, err := os.Stat(folder); err != nil || !found.IsDir() {
		s.say(wanted.id, "couldn't chdir to `%s': No such file or directory: going to /tmp instead", folder)
		folder = "/tmp"
	}
	return folder
}

// Refuse says why a task was not started, and ends it as Slurm does: with the number of the error.
func (s *session) refuse(wanted taskStart, err error) {
	code, number := 1, syscall.Errno(0)
	if errors.As(err, &number) {
		code = int(number)
	}
	name := ""
	if wanted.program >= 0 && wanted.program < len(s.start.programs) && len(s.start.programs[wanted.program]) > 0 {
		name = s.start.programs[wanted.program][0]
	}
	why := err.Error()
	if number == syscall.ENOENT || number == syscall.EACCES {
		why = map[syscall.Errno]string{syscall.ENOENT: "No such file or directory", syscall.EACCES: "Permission denied"}[number]
	}
	if number == syscall.ENOENT && s.start.bare && !strings.Contains(name, "/") {
		why += " (the step has no PATH by --export: write the program's whole path)"
	}
	s.say(wanted.id, "execve(): %s: %s", name, why)
	s.peer.sendMessage(frameExited, &exitedMessage{task: wanted.id, code: code})
}

// Say writes a sentence of the runner's own into the errors of a task.
func (s *session) say(task int, text string, values ...any) {
	host, _ := os.Hostname()
	sentence := fmt.Sprintf("tessera-steps-%s: error: %s\n", host, fmt.Sprintf(text, values...))
	s.peer.sendFrame(append(outputHeader(task, 1), sentence...), frameOutput)
}

// OutputHeader is the beginning of an output frame: room for the header, then the task in four bytes, then the stream.
func outputHeader(task, stream int) []byte {
	frame := make([]byte, frameHeader, frameHeader+5+outputBytes)
	return append(binary.BigEndian.AppendUint32(frame, uint32(task)), byte(stream))
}

// Follow sends a task's output on, then how it ended. A full connection stops the reading, and so the task: nothing is
// kept here but one piece of each stream.
func (s *session) follow(id int, started *task) {
	var pumps sync.WaitGroup
	gone := make(chan struct{})
	for stream, file := range started.output {
		if file != nil {
			pumps.Go(func() { s.pump(file, id, stream, gone) })
		}
	}
	status := <-started.ended
	s.lock.Lock()
	delete(s.running, id)
	last := len(s.running) == 0
	s.lock.Unlock()
	if last && !s.start.keepOrphan {
		s.killGroups()
	}
	close(gone)
	for _, file := range started.output {
		if file != nil {
			file.SetReadDeadline(time.Now().Add(orphansAtMost))
		}
	}
	pumps.Wait()
	started.close()
	s.peer.sendMessage(frameExited, &exitedMessage{task: id, code: exitCode(status), signaled: status.Signaled()})
}

func (t *task) close() {
	for _, file := range append(t.output, t.stdin, t.pmi) {
		if file != nil {
			file.Close()
		}
	}
}

func (s *session) pump(file *os.File, id, stream int, gone <-chan struct{}) {
	frame := outputHeader(id, stream)
	start := len(frame)
	frame = frame[:cap(frame)]
	for {
		select {
		case <-gone:
			file.SetReadDeadline(time.Now().Add(orphansAtMost))
		default:
		}
		length, err := file.Read(frame[start:])
		if length > 0 && s.peer.sendFrame(frame[:start+length], frameOutput) != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

// Signal reaches every process of the tasks' groups.
func (s *session) signal(wanted syscall.Signal) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, each := range s.running {
		syscall.Kill(-each.pid, wanted)
	}
}

func (s *session) killGroups() {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, group := range s.groups {
		syscall.Kill(-group, syscall.SIGKILL)
	}
}

// Input gives a piece to every task that reads, or the end of the input where it is empty, and asks for the next.
func (s *session) input(chunk []byte) {
	s.lock.Lock()
	var readers []*task
	for _, each := range s.running {
		if each.stdin != nil {
			readers = append(readers, each)
		}
	}
	s.lock.Unlock()
	var writes sync.WaitGroup
	for _, each := range readers {
		writes.Go(func() {
			if len(chunk) == 0 {
				each.stdin.Close()
			} else {
				each.stdin.Write(chunk)
			}
		})
	}
	writes.Wait()
	s.peer.send(frameTaken, nil)
}
