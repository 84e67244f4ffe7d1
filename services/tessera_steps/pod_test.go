package main

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestAStepWaitsForPodsThatHaveNotStartedAndNotForThoseThatAreGone(t *testing.T) {
	f := newFirstPod(run{hosts: "p{rank}", size: 2})
	f.join(nil, &joinMessage{cpus: 1})
	var joining stillJoining
	if _, err := f.place([]ask{{tasks: 1}}); !errors.As(err, &joining) || !strings.Contains(err.Error(), "p1") {
		t.Error(err)
	}
	f.join(&peer{}, &joinMessage{from: 1, cpus: 1})
	if found := said(f.place([]ask{{tasks: 2}})); found != "n1:1 n2:1" {
		t.Error(found)
	}
	f.members[1] = member{joined: true, since: time.Now()}
	if _, err := f.place([]ask{{tasks: 2}}); !errors.As(err, &joining) {
		t.Error(err)
	}
	f.members[1].since = time.Now().Add(-lossPatience - time.Second)
	if _, err := f.place([]ask{{tasks: 2}}); err == nil || !strings.Contains(err.Error(), "p1 is gone") {
		t.Error(err)
	}
}

func TestTheStartOfAProcessIsKnown(t *testing.T) {
	now := time.Now()
	own := startOf(strconv.Itoa(os.Getpid()), now)
	if own.After(now.Add(time.Second)) || !startOf("1", now).Before(own) {
		t.Errorf("%v, the first process of the machine %v, now %v", own, startOf("1", now), now)
	}
	if startOf("0", now) != now || startOf("", now) != now {
		t.Error("a process that is not there has a start")
	}
}

func TestAPodHasACPUForEachOfItsTasks(t *testing.T) {
	t.Setenv("SLURM_TASKS_PER_NODE", "4(x2),3")
	f := newFirstPod(run{hosts: "p{rank}", size: 3})
	for rank := range 3 {
		f.join(nil, &joinMessage{from: rank, cpus: 2})
	}
	if f.rooms[0].cpus != 4 || f.rooms[1].cpus != 4 || f.rooms[2].cpus != 3 {
		t.Errorf("%+v", f.rooms)
	}
}

func TestTasksGoByPodsInBlocksOrInTurn(t *testing.T) {
	shares := []share{{rank: 0, tasks: 2}, {rank: 1, tasks: 2}}
	for cyclic, expected := range map[bool]string{false: "0,1 2,3", true: "0,2 1,3"} {
		found := layOut([]*srunPart{{cyclic: cyclic}}, shares)
		if both := found.inPod[0] + " " + found.inPod[1]; both != expected || found.local[3] != 1 {
			t.Error(both)
		}
	}
}
