package main

import (
	"bytes"
	"net"
	"os"
	"runtime"
	"testing"
)

func descriptors(t *testing.T) int {
	t.Helper()
	found, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// What a stranger costs ends with its connection, and at most handshakesAtMost are looked at: so that a million cost in
// memory what these thousands do.
func TestStrangersWhoComeAndGoLeaveNothingBehind(t *testing.T) {
	r, listener := served(t)
	const waves, inOneWave = 20, 500
	garbage := bytes.Repeat([]byte("\x16\x03\x01\xff\xff"), 100)
	wave := func() {
		held := make([]net.Conn, inOneWave)
		for index := range held {
			stranger, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			held[index] = stranger
			stranger.Write(garbage[:index%len(garbage)])
		}
		for _, each := range held {
			each.Close()
		}
	}
	heap := func() uint64 {
		var found runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&found)
		return found.HeapInuse
	}
	wave()
	waitUntil(t, func() bool { return runtime.NumGoroutine() < handshakesAtMost })
	files, held, most := descriptors(t), heap(), 0
	for range waves {
		wave()
		most = max(most, runtime.NumGoroutine())
	}
	waitUntil(t, func() bool { return descriptors(t) <= files })
	if grown := int64(heap()) - int64(held); grown > 4<<20 || most > 3*handshakesAtMost {
		t.Errorf("%d bytes and %d goroutines", grown, most)
	}
	if said, code := hello(t, r, echo(0)); said != "hello\n" || code != 0 {
		t.Errorf("%q %d", said, code)
	}
}
