package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	lineBytes   = 64 << 10 // of a line that has no end yet, at most
	lineSeconds = time.Second
)

// Destination is a file that several streams are written to, whole lines at a time.
type destination struct {
	lock   sync.Mutex
	file   *os.File
	failed error
}

// Outputs are where the streams of tasks go.
type outputs struct {
	streams      map[[2]int]*stream // by task and 0 for output, 1 for errors
	destinations map[string]*destination
	label        int // digits of the longest task's number; 0: no labels
	unbuffered   bool
}

type stream struct {
	to      *destination
	label   string
	partial []byte
	since   time.Time // of the partial line
	midLine bool      // its beginning was written
}

func newOutputs(tasks int, label, unbuffered bool) *outputs {
	o := &outputs{streams: map[[2]int]*stream{}, destinations: map[string]*destination{"": {file: os.Stdout}, "\x00": {file: os.Stderr}}, unbuffered: unbuffered}
	if label {
		o.label = len(strconv.Itoa(tasks - 1))
	}
	return o
}

// To sends a stream of a task to standard output or error, by its number, or to a file where one is named.
func (o *outputs) to(task, number int, name string, appends bool) error {
	if name == "" && number == 1 {
		name = "\x00"
	}
	if o.destinations[name] == nil {
		flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
		if !appends {
			flags |= os.O_TRUNC
		}
		file, err := os.OpenFile(name, flags, 0o666)
		if err != nil {
			return err
		}
		o.destinations[name] = &destination{file: file}
	}
	added := &stream{to: o.destinations[name]}
	if o.label > 0 {
		added.label = fmt.Sprintf("%*d: ", o.label, task)
	}
	o.streams[[2]int{task, number}] = added
	return nil
}

// Write takes the payload of an output frame. It blocks as long as the reader of the destination does.
func (o *outputs) write(payload []byte) error {
	s := o.streams[[2]int{int(binary.BigEndian.Uint32(payload)), int(payload[4])}]
	if s == nil {
		return nil
	}
	s.to.lock.Lock()
	defer s.to.lock.Unlock()
	data := payload[5:]
	if o.unbuffered {
		s.emit(data)
		return s.to.failed
	}
	if end := bytes.LastIndexByte(data, '\n'); end >= 0 {
		s.emit(append(s.partial, data[:end+1]...))
		s.partial, data = nil, data[end+1:]
	}
	if len(data) > 0 {
		if len(s.partial) == 0 {
			s.since = time.Now()
		}
		s.partial = append(s.partial, data...)
	}
	if len(s.partial) >= lineBytes {
		s.flush()
	}
	return s.to.failed
}

func (s *stream) flush() {
	s.emit(s.partial)
	s.partial = nil
}

// Emit writes bytes, with the label at each line's beginning.
func (s *stream) emit(data []byte) {
	if len(data) == 0 || s.to.failed != nil {
		return
	}
	if s.label != "" {
		var labelled []byte
		for line := range bytes.Lines(data) {
			if !s.midLine {
				labelled = append(labelled, s.label...)
			}
			labelled = append(labelled, line...)
			s.midLine = line[len(line)-1] != '\n'
		}
		data = labelled
	}
	_, s.to.failed = s.to.file.Write(data)
}

// FlushLate writes out lines that have waited for their end for lineSeconds.
func (o *outputs) flushLate(ended <-chan struct{}) {
	ticks := time.NewTicker(lineSeconds / 4)
	defer ticks.Stop()
	for {
		select {
		case <-ended:
			return
		case now := <-ticks.C:
			for _, s := range o.streams {
				s.to.lock.Lock()
				if len(s.partial) > 0 && now.Sub(s.since) >= lineSeconds {
					s.flush()
				}
				s.to.lock.Unlock()
			}
		}
	}
}

// Close writes what is left. Its error is the first of all writes.
func (o *outputs) close() error {
	for _, s := range o.streams {
		s.to.lock.Lock()
		s.flush()
		s.to.lock.Unlock()
	}
	for name, each := range o.destinations {
		if name != "" && name != "\x00" {
			if err := each.file.Close(); each.failed == nil {
				each.failed = err
			}
		}
	}
	for _, each := range o.destinations {
		if each.failed != nil {
			return each.failed
		}
	}
	return nil
}
