package main

import (
	"strings"
	"testing"
)

func TestTheMappingSaysWhereEachTaskIs(t *testing.T) {
	for expected, each := range map[string]struct {
		shares []share
		cyclic bool
	}{
		"(vector,(0,2,4))":         {shares: []share{{rank: 3, tasks: 4}, {rank: 7, tasks: 4}}},
		"(vector,(0,1,4),(1,1,3))": {shares: []share{{rank: 3, tasks: 4}, {rank: 7, tasks: 3}}},
		"(vector,(0,2,1))":         {shares: []share{{rank: 0, tasks: 2}, {rank: 1, tasks: 2}}, cyclic: true},
		"(vector,(0,2,1),(0,1,1))": {shares: []share{{rank: 0, tasks: 2}, {rank: 1, tasks: 1}}, cyclic: true},
		"(vector,(0,1,1))":         {shares: []share{{rank: 5, tasks: 1}}},
		// neighbours in one pod are one block, whatever their parts
		"(vector,(0,1,3),(1,1,1))": {shares: []share{{rank: 0, tasks: 2}, {rank: 0, tasks: 1, part: 1}, {rank: 1, tasks: 1, part: 1}}},
	} {
		parts := []*srunPart{{cyclic: each.cyclic}, {}}
		if found := layOut(parts, each.shares).mapping(); found != expected {
			t.Errorf("%v: %s, not %s", each.shares, found, expected)
		}
	}
}

func TestAMappingThatNoProgramReadsIsNotGiven(t *testing.T) {
	uneven := make([]share, 500)
	for rank := range uneven {
		uneven[rank] = share{rank: rank, tasks: 1 + rank%3}
	}
	y := layOut([]*srunPart{{}}, uneven)
	if _, given := newPmiServer(y).values["PMI_process_mapping"]; given || !strings.HasPrefix(y.mapping(), "(vector,(0,1,1),(1,1,2)") {
		t.Errorf("given: %v", given)
	}
}
