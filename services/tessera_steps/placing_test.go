package main

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
)

// TwoPods are what the real Slurm had when it was asked: two nodes of four CPUs and four GPUs.
func twoPods() []room {
	rooms := make([]room, 2)
	for rank := range rooms {
		gpus := []string{"0", "1", "2", "3"}
		rooms[rank] = room{rank: rank, cpus: 4, freeCPUs: 4, gpus: gpus, freeGPUs: gpus}
	}
	return rooms
}

func said(shares []share, err error) string {
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, each := range shares {
		all = append(all, fmt.Sprintf("n%d:%d", each.rank+1, each.tasks))
	}
	return strings.Join(all, " ")
}

func TestTasksLieAsTheRealSlurmLaidThem(t *testing.T) {
	for name, each := range map[string]struct {
		asked    ask
		expected string
	}{
		"-n8":                      {ask{tasks: 8}, "n1:4 n2:4"},
		"-N1 -n8":                  {ask{tasks: 8, nodes: 1}, "More processors requested than permitted"},
		"-n2":                      {ask{tasks: 2}, "n1:1 n2:1"},
		"-n3":                      {ask{tasks: 3}, "n1:2 n2:1"},
		"-n1":                      {ask{tasks: 1}, "n1:1"},
		"-w n2 -n8":                {ask{tasks: 8, wanted: []int{1}}, "n1:4 n2:4"},
		"-w n2 -n2":                {ask{tasks: 2, wanted: []int{1}}, "n1:1 n2:1"},
		"-w n2 -N1 -n1":            {ask{tasks: 1, nodes: 1, wanted: []int{1}}, "n2:1"},
		"-x n1 -N2":                {ask{tasks: 8, nodes: 2, excluded: []int{0}}, "Only allocated 1 nodes asked for 2"},
		"-N1 -r1 -n2":              {ask{tasks: 2, nodes: 1, first: 1}, "n2:2"},
		"-n4 --ntasks-per-node=2":  {ask{tasks: 4, perNode: 2}, "n1:2 n2:2"},
		"-N1 -n4 --gpus-per-task1": {ask{tasks: 4, nodes: 1, gpusPerTask: 1}, "n1:4"},
		"-n9":                      {ask{tasks: 9}, "More processors requested than permitted"},
		"-N3":                      {ask{tasks: 8, nodes: 3}, "Only allocated 2 nodes asked for 3"},
		"-n2 -c4":                  {ask{tasks: 2, cpus: 4}, "n1:1 n2:1"},
		"-n4 -c2":                  {ask{tasks: 4, cpus: 2}, "n1:2 n2:2"},
		"-n3 -c4":                  {ask{tasks: 3, cpus: 4}, "More processors requested than permitted"},
		"-O -n10":                  {ask{tasks: 10, overcommit: true}, "n1:5 n2:5"},
		"--gpus=9":                 {ask{tasks: 1, gpus: 9}, "Invalid generic resource (gres) specification"},
	} {
		if found := said(placeStep(twoPods(), []ask{each.asked})); found != each.expected {
			t.Errorf("%s: %s, where the real one has %s", name, found, each.expected)
		}
	}
}

func TestPartsOfAStepLieBehindEachOther(t *testing.T) {
	if found := said(placeStep(twoPods(), []ask{{tasks: 1}, {tasks: 3}})); found != "n1:1 n2:3" {
		t.Error(found)
	}
	if found := said(placeStep(twoPods(), []ask{{tasks: 1}, {tasks: 7, cpus: 1}})); found != "n1:1 n1:3 n2:4" {
		t.Error(found)
	}
}

func TestAStepTakesItsPodsWholeUnlessItIsExact(t *testing.T) {
	rooms := twoPods()
	for _, expected := range []string{"n1:1", "n2:1", "Requested nodes are busy"} {
		shares, err := placeStep(rooms, []ask{{tasks: 1, nodes: 1}})
		if said(shares, err) != expected {
			t.Errorf("%s, where %s was to come", said(shares, err), expected)
		}
		take(rooms, shares, 1)
	}
	rooms = twoPods()
	for index := range 9 {
		shares, err := placeStep(rooms, []ask{{tasks: 1, cpus: 1, exact: true, noGPUs: true}})
		if (err != nil) != (index == 8) {
			t.Errorf("step %d: %s", index, said(shares, err))
		}
		take(rooms, shares, 1)
	}
	if found := said(placeStep(rooms, []ask{{tasks: 2, overlap: true}})); found != "n1:1 n2:1" {
		t.Error("--overlap waits for nobody: " + found)
	}
}

func TestAWantedPodIsWaitedFor(t *testing.T) {
	rooms := twoPods()
	rooms[1].freeCPUs = 0
	if found := said(placeStep(rooms, []ask{{tasks: 1, nodes: 1, wanted: []int{1}, exact: true}})); found != "Requested nodes are busy" {
		t.Error(found)
	}
}

func TestNoCPUAndNoGPUIsGivenTwiceAndAllComeBack(t *testing.T) {
	random := rand.New(rand.NewSource(38))
	rooms := twoPods()
	var held [][]share
	for range 5000 {
		if len(held) > 0 && random.Intn(2) == 0 {
			which := random.Intn(len(held))
			take(rooms, held[which], -1)
			held = slices.Delete(held, which, which+1)
		} else {
			asked := ask{tasks: 1 + random.Intn(4), cpus: 1 + random.Intn(2), exact: random.Intn(4) > 0, overlap: random.Intn(4) == 0, gpusPerTask: random.Intn(2), nodes: random.Intn(3)}
			if shares, err := placeStep(rooms, []ask{asked}); err == nil {
				take(rooms, shares, 1)
				held = append(held, shares)
			}
		}
		for _, each := range rooms {
			cpus, gpus := each.freeCPUs, slices.Clone(each.freeGPUs)
			for _, shares := range held {
				for _, share := range shares {
					if share.rank == each.rank {
						cpus = cpus + share.cpus
						if !share.lent {
							gpus = append(gpus, share.gpus...)
						}
					}
				}
			}
			slices.Sort(gpus)
			if each.freeCPUs < 0 || cpus != each.cpus || !slices.Equal(gpus, each.gpus) {
				t.Fatalf("pod %d: %d CPUs of %d, GPUs %v of %v", each.rank, cpus, each.cpus, gpus, each.gpus)
			}
		}
	}
}
