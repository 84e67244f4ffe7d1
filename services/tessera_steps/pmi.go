package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// PmiServer stands in srun and answers what the tasks of an MPI program ask in the words of PMI-1: who is where, and what
// the others have put down. A task has a socket to the runner of its pod, PMI_FD, and asks one thing at a time.
type pmiServer struct {
	tasks  int
	begins []int // the first task of each part

	lock    sync.Mutex
	values  map[string]string
	waiting map[int]*peer // tasks in the barrier, with the pods that are told of its end
	begun   map[int]bool  // they said init: false where finalize came since
	left    []int         // they ended without finalize: no barrier has an end any more
}

const (
	pmiSocket     = 3 // of a task, behind its streams
	pmiKeyBytes   = 64
	pmiValueBytes = 1024
)

func newPmiServer(y *layout) *pmiServer {
	s := &pmiServer{tasks: y.tasks, begins: y.begins, values: map[string]string{}, waiting: map[int]*peer{}, begun: map[int]bool{}}
	if mapping := y.mapping(); len(mapping) <= pmiValueBytes { // without it programs compare the names of their hosts
		s.values["PMI_process_mapping"] = mapping
	}
	return s
}

// PmiMessage is a line that a task asks, or that it is answered.
type pmiMessage struct {
	task int
	line string
}

func (m *pmiMessage) fields(c *coder) {
	c.number(&m.task)
	c.text(&m.line)
}

// Take answers a task of that pod. Errors: the step cannot go on.
func (s *pmiServer) take(from *peer, asked pmiMessage) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	line, value, _ := strings.Cut(asked.line, " value=")
	said := map[string]string{}
	for _, each := range strings.Fields(line) {
		name, is, _ := strings.Cut(each, "=")
		said[name] = is
	}
	answer := ""
	switch said["cmd"] {
	case "init":
		if said["pmi_version"] != "1" {
			return fmt.Errorf("task %d speaks PMI %s, where a step serves PMI 1: start the program by mpirun (docs/steps.md)", asked.task, said["pmi_version"])
		}
		s.begun[asked.task] = true
		answer = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
	case "get_maxes":
		answer = fmt.Sprintf("cmd=maxes kvsname_max=64 keylen_max=%d vallen_max=%d", pmiKeyBytes, pmiValueBytes)
	case "get_appnum":
		part, _ := slices.BinarySearch(s.begins, asked.task+1)
		answer = fmt.Sprintf("cmd=appnum appnum=%d", part-1)
	case "get_universe_size":
		answer = fmt.Sprintf("cmd=universe_size size=%d", s.tasks)
	case "get_my_kvsname":
		answer = "cmd=my_kvsname kvsname=step"
	case "put":
		s.values[said["key"]] = value
		answer = "cmd=put_result rc=0 msg=success"
	case "get":
		answer = "cmd=get_result rc=-1 msg=key_not_found value=unknown"
		if found, known := s.values[said["key"]]; known {
			answer = "cmd=get_result rc=0 msg=success value=" + found
		}
	case "barrier_in":
		s.waiting[asked.task] = from
		return s.meet()
	case "finalize":
		s.begun[asked.task] = false
		answer = "cmd=finalize_ack"
	case "abort": // it ends by itself
		return nil
	default:
		return fmt.Errorf("task %d asks for %q, which a step does not serve: start the program by mpirun (docs/steps.md)", asked.task, strings.TrimSpace(line))
	}
	return from.sendMessage(framePMI, &pmiMessage{asked.task, answer})
}

// Meet lets the tasks in the barrier go on once all are there.
func (s *pmiServer) meet() error {
	if len(s.waiting) > 0 && len(s.left) > 0 {
		return fmt.Errorf("others wait in MPI for task %d, which has ended", s.left[0])
	}
	if len(s.waiting) < s.tasks {
		return nil
	}
	var failures []error
	for task, at := range s.waiting {
		failures = append(failures, at.sendMessage(framePMI, &pmiMessage{task, "cmd=barrier_out"}))
	}
	clear(s.waiting)
	return errors.Join(failures...)
}

// Ended is told of every task that ended. Errors: the others would wait for it.
func (s *pmiServer) ended(task int) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.waiting, task)
	open, known := s.begun[task]
	if open {
		return fmt.Errorf("task %d ended between MPI_Init and MPI_Finalize", task)
	}
	if !known {
		s.left = append(s.left, task)
	}
	return s.meet()
}

// Mapping says in PMI's form on which pod of the step each task is: blocks of its first pod, pods, tasks of each.
func (y *layout) mapping() string {
	nodes := make([]int, y.tasks)
	for _, ids := range y.ids {
		for rank, of := range ids {
			for _, id := range of {
				nodes[id] = y.nodeOf(rank)
			}
		}
	}
	type block struct{ first, pods, tasks int }
	var blocks []block
	for start := 0; start < len(nodes); {
		end := start
		for end < len(nodes) && nodes[end] == nodes[start] {
			end++
		}
		if last := len(blocks) - 1; last >= 0 && blocks[last].tasks == end-start && blocks[last].first+blocks[last].pods == nodes[start] {
			blocks[last].pods++
		} else {
			blocks = append(blocks, block{nodes[start], 1, end - start})
		}
		start = end
	}
	if different := slices.ContainsFunc(blocks, func(each block) bool { return each != blocks[0] }); !different {
		blocks = blocks[:1] // it counts as often as there are tasks
	}
	said := "(vector"
	for _, each := range blocks {
		said += fmt.Sprintf(",(%d,%d,%d)", each.first, each.pods, each.tasks)
	}
	return said + ")"
}

// PmiVariables tell a task of its socket.
func pmiVariables(id, tasks int) []string {
	return []string{"PMI_FD=" + strconv.Itoa(pmiSocket), "PMI_RANK=" + strconv.Itoa(id), "PMI_SIZE=" + strconv.Itoa(tasks)}
}

// Socket gives the task one end of a socket, and keeps ours.
func (t *taskStreams) socket() error {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.add(os.NewFile(uintptr(ends[1]), "pmi"))
	syscall.SetNonblock(ends[0], true) // so that closing it ends a read
	t.pmi = os.NewFile(uintptr(ends[0]), "pmi")
	return nil
}

// PassOn carries the lines of a task to srun, each behind the answer of the one before.
func (s *session) passOn(id int, started *task) {
	for lines := bufio.NewScanner(started.pmi); lines.Scan(); {
		if s.peer.sendMessage(framePMI, &pmiMessage{id, lines.Text()}) != nil {
			return
		}
		select {
		case answer := <-started.answers:
			started.pmi.WriteString(answer + "\n")
		case <-s.peer.ended:
			return
		}
	}
}

// Answer hands an answer to the task that waits for it.
func (s *session) answer(said pmiMessage) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if of := s.running[said.task]; of != nil && of.answers != nil {
		select {
		case of.answers <- said.line:
		default: // it asked for one
		}
	}
}
