package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Patience is for anything to come to pass, on a machine that does much else.
const patience = 2 * time.Minute

func identityOf(t *testing.T, key []byte) *tls.Config {
	t.Helper()
	config, err := identity(key)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// Served is a first pod that serves steps on loopback, alone.
func served(t *testing.T) (*runner, net.Listener) {
	t.Helper()
	key := make([]byte, keyBytes)
	rand.Read(key)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	alone := run{job: "j", size: 1, hosts: "127.0.0.1", port: port}
	r := &runner{run: alone, identity: identityOf(t, key), sessions: map[*session]bool{}, processes: processes(), own: []string{"PATH=/usr/bin:/bin"}, first: newFirstPod(alone)}
	r.first.join(nil, &joinMessage{cpus: 2})
	go r.accept(listener)
	return r, listener
}

var processes = sync.OnceValue(newChildren)

func hello(t *testing.T, r *runner, start startMessage) (string, int) {
	t.Helper()
	p, err := r.dial(0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.sendMessage(frameStart, &start); err != nil {
		t.Fatal(err)
	}
	said, code := "", -1
	for {
		kind, payload, err := p.receive()
		var exited exitedMessage
		switch {
		case err != nil:
			t.Fatal(err)
		case kind == frameOutput:
			said += string(payload[5:])
		case kind == frameExited:
			if err := decode(payload, &exited); err != nil {
				t.Fatal(err)
			}
			code = exited.code
		case kind == frameRefused:
			return string(payload), -1
		case kind == frameDone:
			return said, code
		}
	}
}

func echo(rank int) startMessage {
	return startMessage{rank: rank, programs: [][]string{{"echo", "hello"}}, tasks: []taskStart{{}}}
}

func TestWhoHoldsTheKeyIsServed(t *testing.T) {
	r, _ := served(t)
	if said, code := hello(t, r, echo(0)); said != "hello\n" || code != 0 {
		t.Errorf("%q %d", said, code)
	}
}

func TestAStepForAnotherPodIsRefused(t *testing.T) {
	r, _ := served(t)
	if said, _ := hello(t, r, echo(1)); !strings.Contains(said, "another pod") {
		t.Error(said)
	}
}

func TestAKeyOfAnotherRunOrAttemptOpensNothing(t *testing.T) {
	r, _ := served(t)
	other := make([]byte, keyBytes)
	if p, err := dial(context.Background(), identityOf(t, other), "127.0.0.1", r.port); !errors.Is(err, errStranger) {
		t.Errorf("%v %v", p, err)
	}
	// One that does not look whom it talks to gets no answer either.
	blind := identityOf(t, other)
	blind.VerifyConnection = nil
	if p, err := dial(context.Background(), blind, "127.0.0.1", r.port); err == nil {
		p.sendMessage(frameStart, &startMessage{programs: [][]string{{"echo"}}, tasks: []taskStart{{}}})
		if kind, _, err := p.receive(); err == nil {
			t.Errorf("an answer of kind %d", kind)
		}
	}
	none := &tls.Config{InsecureSkipVerify: true}
	if p, err := dial(context.Background(), none, "127.0.0.1", r.port); err == nil {
		if kind, _, err := p.receive(); err == nil {
			t.Errorf("an answer of kind %d", kind)
		}
	}
	if said, _ := hello(t, r, echo(0)); said != "hello\n" {
		t.Error(said)
	}
}

func TestOlderTLSIsNotSpoken(t *testing.T) {
	r, _ := served(t)
	old := r.identity.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, err := dial(context.Background(), old, "127.0.0.1", r.port); err == nil {
		t.Error("TLS 1.2 was spoken")
	}
}

// Recorder hands a connection on and keeps what the client says.
func recorder(t *testing.T, to string) (net.Listener, func() []byte) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var kept bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		go func() { io.Copy(client, server); client.Close() }()
		io.Copy(server, io.TeeReader(client, &kept))
		server.Close()
	}()
	return listener, func() []byte { <-done; return kept.Bytes() }
}

func TestBytesThatWereRecordedStartNothing(t *testing.T) {
	r, listener := served(t)
	between, kept := recorder(t, listener.Addr().String())
	through := runner{run: r.run, identity: r.identity}
	_, through.port, _ = net.SplitHostPort(between.Addr().String())
	if said, _ := hello(t, &through, echo(0)); said != "hello\n" {
		t.Fatal(said)
	}
	waitUntil(t, func() bool { r.lock.Lock(); defer r.lock.Unlock(); return len(r.sessions) == 0 })
	again, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	again.Write(kept())
	again.SetReadDeadline(time.Now().Add(patience))
	answer, err := io.ReadAll(again)
	if err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") || len(answer) == 0 {
		t.Errorf("%d bytes, %v", len(answer), err)
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if bytes.Contains(answer, []byte("hello")) || len(r.sessions) > 0 {
		t.Error("a recorded step was started")
	}
}

// Counted knows how many connections are open that it has accepted, and how many ever were at once.
type counted struct {
	net.Listener
	lock       sync.Mutex
	open, most int
}

type countedConnection struct {
	net.Conn
	of   *counted
	once sync.Once
}

func (c *counted) Accept() (net.Conn, error) {
	connection, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.open++
	c.most = max(c.most, c.open)
	return &countedConnection{Conn: connection, of: c}, nil
}

func (c *countedConnection) Close() error {
	c.once.Do(func() {
		c.of.lock.Lock()
		defer c.of.lock.Unlock()
		c.of.open--
	})
	return c.Conn.Close()
}

func TestThousandsOfStrangersAreClosedAtOnceAndLockNobodyOut(t *testing.T) {
	r, _ := served(t)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := &counted{Listener: inner}
	defer listener.Close()
	go r.accept(listener)
	const strangers = 1000
	var last net.Conn
	for range strangers {
		if last, err = net.Dial("tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer last.Close()
	}
	// They are accepted in the order in which they came: once the last one has been dropped, all have been looked at.
	last.SetReadDeadline(time.Now().Add(patience))
	if _, err := last.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the last of them was not dropped")
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	p, err := dialPatiently(context.Background(), patience, r.identity, "127.0.0.1", port)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	listener.lock.Lock()
	defer listener.lock.Unlock()
	if listener.most > handshakesAtMost+1 {
		t.Errorf("%d were held at once", listener.most)
	}
}

func TestAFrameOfAGibibyteClosesItsConnectionAndTakesNoMemory(t *testing.T) {
	r, _ := served(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, kind := range []frameKind{frameStart, frameAllocate, frameJoin, frameInput, 200} {
		p, err := r.dial(0)
		if err != nil {
			t.Fatal(err)
		}
		header := binary.BigEndian.AppendUint32([]byte{byte(kind)}, 1<<30)
		p.Write(append(header, make([]byte, 4096)...))
		if kind, _, err := p.receive(); err == nil {
			t.Errorf("an answer of kind %d", kind)
		}
		p.Close()
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
	if said, _ := hello(t, r, echo(0)); said != "hello\n" {
		t.Error(said)
	}
}

func TestMessagesThatLieAboutTheirLengthAreRefused(t *testing.T) {
	r, _ := served(t)
	var good coder
	whole := echo(0)
	whole.fields(&good)
	for cut := range good.bytes {
		if err := decode(good.bytes[:cut], &startMessage{}); err == nil {
			t.Errorf("%d of %d bytes were read", cut, len(good.bytes))
		}
	}
	if err := decode(append(good.bytes, 0), &startMessage{}); err == nil {
		t.Error("a byte too many was read")
	}
	lying := coder{}
	for _, number := range []int{0, 0, 0, 0, 1 << 60} {
		lying.number(&number)
	}
	p, err := r.dial(0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.send(frameStart, lying.bytes)
	if kind, payload, err := p.receive(); err != nil || kind != frameRefused {
		t.Errorf("%d %s %v", kind, payload, err)
	}
}

func FuzzMessagesAreReadOrRefused(f *testing.F) {
	f.Add([]byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, message := range []fielded{&startMessage{}, &allocateMessage{}, &joinMessage{}, &grantedMessage{}, &exitedMessage{}} {
			if decode(payload, message) == nil {
				var again coder
				message.fields(&again)
				if decode(again.bytes, message) != nil {
					t.Errorf("%T is written as it is not read", message)
				}
			}
		}
	})
}

func TestABrokenConnectionEndsItsTasks(t *testing.T) {
	r, _ := served(t)
	p, err := r.dial(0)
	if err != nil {
		t.Fatal(err)
	}
	start := startMessage{programs: [][]string{{"sleep", "1000"}}, tasks: []taskStart{{id: 0}, {id: 1}}}
	p.sendMessage(frameStart, &start)
	running := func() int {
		r.processes.lock.Lock()
		defer r.processes.lock.Unlock()
		return len(r.processes.waiting)
	}
	waitUntil(t, func() bool { return running() == 2 })
	p.Close()
	waitUntil(t, func() bool { return running() == 0 })
}

func waitUntil(t *testing.T, holds func() bool) {
	t.Helper()
	within, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for !holds() {
		if within.Err() != nil {
			t.Fatal("it did not come to pass in time")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestInputThatWasNotAskedForEndsTheConnection(t *testing.T) {
	r, _ := served(t)
	p, err := r.dial(0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.sendMessage(frameStart, &startMessage{programs: [][]string{{"sleep", "1000"}}, tasks: []taskStart{{reads: true}}})
	for range 64 {
		if p.send(frameInput, make([]byte, frameBytes)) != nil {
			break
		}
	}
	for {
		if _, _, err := p.receive(); err != nil {
			return
		}
	}
}

// TestMain lets the test's own program become a task, as the runner's does.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "task" {
		os.Exit(becomeTask(os.Args[2], os.Args[3:]))
	}
	os.Exit(m.Run())
}
