package main

import (
	"os"
	"testing"
	"time"
)

func TestTheAgeOfAProcessIsKnown(t *testing.T) {
	began := time.Now()
	first := ageOf(os.Getpid())
	if second := ageOf(os.Getpid()); first < -time.Second || second < first || second-first > time.Since(began)+time.Second {
		t.Errorf("%v, then %v", first, second)
	}
	if ageOf(os.Getpid()) >= ageOf(1) {
		t.Error("the first process of the machine is no older than this one")
	}
	if ageOf(0) != joinPatience {
		t.Error("a process that is not there has an age")
	}
}
