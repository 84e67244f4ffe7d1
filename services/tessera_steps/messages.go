package main

// JoinMessage is what a pod says of itself to the first one.
type joinMessage struct {
	rank int // of the pod that is meant
	from int
	cpus int
	gpus []string
}

func (m *joinMessage) fields(c *coder) {
	c.number(&m.rank)
	c.number(&m.from)
	c.number(&m.cpus)
	c.texts(&m.gpus)
}

// AllocateMessage asks the first pod for a step.
type allocateMessage struct {
	rank  int
	parts []ask
	name  string // of the step: its first program
}

func (m *allocateMessage) fields(c *coder) {
	c.number(&m.rank)
	c.text(&m.name)
	list(c, &m.parts, func(each *ask) { each.fields(c) })
}

// GrantedMessage answers it: the step's number and its shares.
type grantedMessage struct {
	step   int
	shares []share
}

func (m *grantedMessage) fields(c *coder) {
	c.number(&m.step)
	list(c, &m.shares, func(each *share) { each.fields(c) })
}

// AnyPod as the rank of a message means whoever listens at that address.
const anyPod = -1

// StartMessage is what a pod needs to start its tasks of a step, or the one command of an ssh.
type startMessage struct {
	rank       int
	folder     string   // empty: that of the pod
	bare       bool     // of the pod's own variables only those of the run go along
	set        []string // NAME=value, in all tasks
	unset      []string
	keepOrphan bool // processes that a command left behind live on, as behind sshd
	appends    bool // files of output are written on, not anew
	pmi        bool // each task has a socket for what MPI programs ask
	programs   [][]string
	tasks      []taskStart
}

func (m *startMessage) fields(c *coder) {
	c.number(&m.rank)
	c.text(&m.folder)
	c.flag(&m.bare)
	c.texts(&m.set)
	c.texts(&m.unset)
	c.flag(&m.keepOrphan)
	c.flag(&m.appends)
	c.flag(&m.pmi)
	list(c, &m.programs, func(each *[]string) { c.texts(each) })
	list(c, &m.tasks, func(each *taskStart) { each.fields(c) })
}

// TaskStart is one task of it. A file is opened in the pod; without one the stream goes to srun or comes from there.
type taskStart struct {
	id      int
	program int
	set     []string
	reads   bool
	input   string
	output  string
	errors  string
}

func (t *taskStart) fields(c *coder) {
	c.number(&t.id)
	c.number(&t.program)
	c.texts(&t.set)
	c.flag(&t.reads)
	c.text(&t.input)
	c.text(&t.output)
	c.text(&t.errors)
}

// ExitedMessage is how a task ended: its exit code, 128 and more for a signal.
type exitedMessage struct {
	task     int
	code     int
	signaled bool
}

func (m *exitedMessage) fields(c *coder) {
	c.number(&m.task)
	c.number(&m.code)
	c.flag(&m.signaled)
}

type signalMessage struct{ signal int }

func (m *signalMessage) fields(c *coder) { c.number(&m.signal) }
