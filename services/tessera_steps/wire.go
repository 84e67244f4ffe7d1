package main

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Frame is one message of a connection: its kind, its length in four bytes, its payload.
type frameKind byte

const (
	frameJoin     frameKind = iota + 1 // a pod to the first one: here it is, with what it has
	frameAllocate                      // srun to the first pod: where and when may these tasks run
	frameStart                         // srun or ssh to a pod: start these tasks
	frameWaiting                       // the step waits: why
	frameGranted                       // the step's number, and its tasks on each pod
	frameRefused                       // no: why
	frameOutput                        // bytes of a task
	frameExited                        // a task has ended
	frameDone                          // the last of a connection, which is closed then in good order
	frameSignal                        // a signal for the tasks
	frameInput                         // bytes for the tasks that read; none is the end of the input
	frameTaken                         // they were taken: the next may come
	framePing                          // the other side is there
	frameEnd                           // the run ends
	frameWish                          // scontrol or scancel to the first pod: what the script wants of its job
	framePMI                           // what a task of an MPI program asks, or is answered
)

const (
	frameHeader   = 5
	startBytes    = 1 << 20 // the most of a Start, which carries an environment and command lines
	frameBytes    = 64 << 10
	outputBytes   = 16 << 10 // of one output frame
	pingEvery     = 5 * time.Second
	silenceAtMost = 30 * time.Second
	handshakeTime = 5 * time.Second
)

func bound(kind frameKind) int {
	if kind == frameStart || kind == frameGranted || kind == frameAllocate {
		return startBytes
	}
	return frameBytes
}

// Peer is an authenticated connection. Frames are written whole by any goroutine and read by one; who says nothing for
// silenceAtMost while it is listened to counts as gone.
type peer struct {
	net.Conn
	reader  *bufio.Reader
	writing sync.Mutex
	ended   chan struct{}
	once    sync.Once
}

func newPeer(connection *tls.Conn) *peer {
	return &peer{Conn: connection, reader: bufio.NewReaderSize(connection, 4096), ended: make(chan struct{})}
}

func (p *peer) Close() error {
	p.once.Do(func() { close(p.ended) })
	return p.Conn.Close()
}

// KeepAlive pings until the connection is closed, whatever the peer does with what it gets.
func (p *peer) keepAlive() {
	ticks := time.NewTicker(pingEvery)
	defer ticks.Stop()
	for {
		select {
		case <-p.ended:
			return
		case <-ticks.C:
			if p.send(framePing, nil) != nil {
				return
			}
		}
	}
}

func (p *peer) send(kind frameKind, payload []byte) error {
	return p.sendFrame(append(make([]byte, frameHeader, frameHeader+len(payload)), payload...), kind)
}

// SendFrame sends a buffer whose first five bytes are left free for the header.
func (p *peer) sendFrame(frame []byte, kind frameKind) error {
	length := len(frame) - frameHeader
	if length > bound(kind) {
		return fmt.Errorf("a message of %d bytes, where %d are the most: shorten the environment or the command", length, bound(kind))
	}
	frame[0] = byte(kind)
	binary.BigEndian.PutUint32(frame[1:], uint32(length))
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err := p.Write(frame)
	return err
}

func (p *peer) sendMessage(kind frameKind, message fielded) error {
	writer := coder{bytes: make([]byte, frameHeader, 1024)}
	message.fields(&writer)
	return p.sendFrame(writer.bytes, kind)
}

// Receive reads the next frame that is no ping.
func (p *peer) receive() (frameKind, []byte, error) {
	var header [frameHeader]byte
	for {
		if err := p.SetReadDeadline(time.Now().Add(silenceAtMost)); err != nil {
			return 0, nil, err
		}
		if _, err := io.ReadFull(p.reader, header[:]); err != nil {
			return 0, nil, err
		}
		kind, length := frameKind(header[0]), int(binary.BigEndian.Uint32(header[1:]))
		if length > bound(kind) {
			return 0, nil, fmt.Errorf("a frame of %d bytes, where %d are the most", length, bound(kind))
		}
		if kind == framePing && length == 0 {
			continue
		}
		payload := make([]byte, length)
		_, err := io.ReadFull(p.reader, payload)
		return kind, payload, err
	}
}

// ReceiveMessage reads the next frame, which is to be of that kind, into a message.
func (p *peer) receiveMessage(expected frameKind, message fielded) error {
	kind, payload, err := p.receive()
	if err != nil {
		return err
	}
	if kind == frameRefused {
		return refusal(payload)
	}
	if kind != expected {
		return fmt.Errorf("a frame of kind %d, where %d was to come", kind, expected)
	}
	return decode(payload, message)
}

type refusal string

func (r refusal) Error() string { return string(r) }

// Fielded is a message whose one method names its fields in order, for reading and for writing.
type fielded interface{ fields(*coder) }

// Coder writes fields behind each other, each number as a varint and each text behind its length, or reads them back.
type coder struct {
	bytes   []byte
	reading bool
	failed  bool
}

func decode(payload []byte, message fielded) error {
	reader := coder{bytes: payload, reading: true}
	message.fields(&reader)
	if reader.failed || len(reader.bytes) > 0 {
		return fmt.Errorf("a message of %T that cannot be read", message)
	}
	return nil
}

func (c *coder) number(value *int) {
	if !c.reading {
		c.bytes = binary.AppendVarint(c.bytes, int64(*value))
		return
	}
	read, length := binary.Varint(c.bytes)
	if length <= 0 {
		c.failed, c.bytes = true, nil
		return
	}
	*value, c.bytes = int(read), c.bytes[length:]
}

func (c *coder) flag(value *bool) {
	number := 0
	if *value {
		number = 1
	}
	c.number(&number)
	*value = number == 1
}

func (c *coder) text(value *string) {
	length := len(*value)
	c.number(&length)
	if !c.reading {
		c.bytes = append(c.bytes, *value...)
		return
	}
	if length < 0 || length > len(c.bytes) {
		c.failed, c.bytes = true, nil
		return
	}
	*value, c.bytes = string(c.bytes[:length]), c.bytes[length:]
}

func (c *coder) texts(values *[]string) { list(c, values, func(each *string) { c.text(each) }) }

// List codes a list of what `field` codes one of. It grows with what was read: a length alone takes no memory.
func list[T any](c *coder, values *[]T, field func(*T)) {
	length := len(*values)
	c.number(&length)
	if !c.reading {
		for index := range *values {
			field(&(*values)[index])
		}
		return
	}
	*values = nil
	for ; length > 0 && !c.failed; length-- {
		var each T
		field(&each)
		*values = append(*values, each)
	}
}
