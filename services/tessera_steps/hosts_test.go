package main

import (
	"slices"
	"strings"
	"testing"
)

func TestAFoldedListIsWrittenOutAsSlurmDoes(t *testing.T) {
	for folded, expected := range map[string]string{
		"a":                     "a",
		"a,b":                   "a b",
		"n[1-3,7]":              "n1 n2 n3 n7",
		"n[08-11]":              "n08 n09 n10 n11",
		"a[1-2]b[3-4],c":        "a1b3 a1b4 a2b3 a2b4 c",
		"job-2-[0-1].run-job-2": "job-2-0.run-job-2 job-2-1.run-job-2",
		"a,,b ":                 "a b",
		"":                      "",
	} {
		hosts, err := expand(folded)
		if err != nil || strings.Join(hosts, " ") != expected {
			t.Errorf("%s: %v %v", folded, hosts, err)
		}
	}
}

func TestAListThatIsNoneOrTooLongIsRefused(t *testing.T) {
	for _, folded := range []string{"n[1", "n[2-1]", "n[a]", "n[]", "n[1-]", "n[1-999999999]", "n[-1]", strings.Repeat("n[0-9]", 9)} {
		if hosts, err := expand(folded); err == nil {
			t.Errorf("%s: %d hosts", folded, len(hosts))
		}
	}
}

func TestFoldedHostsWriteOutToTheSame(t *testing.T) {
	for folded, hosts := range map[string][]string{
		"n[1-3]":            {"n1", "n2", "n3"},
		"n[1,3],m":          {"n1", "n3", "m"},
		"n[9-11]":           {"n9", "n10", "n11"},
		"n[08-10]":          {"n08", "n09", "n10"},
		"n09,n9":            {"n09", "n9"},
		"127.0.0.[1-2]":     {"127.0.0.1", "127.0.0.2"},
		"a,b":               {"a", "b"},
		"j-1-0":             {"j-1-0"},
		"j-1-[0-1],k-[1-2]": {"j-1-0", "j-1-1", "k-1", "k-2"},
	} {
		if found := fold(hosts); found != folded {
			t.Errorf("%v: %s", hosts, found)
		}
		if back, err := expand(folded); err != nil || !slices.Equal(back, hosts) {
			t.Errorf("%s: %v %v", folded, back, err)
		}
	}
}

func TestFoldedCountsAreReadAndWritten(t *testing.T) {
	for folded, expected := range map[string][]int{"4(x2),3": {4, 4, 3}, "1": {1}, "1,2,1": {1, 2, 1}} {
		if found, err := counts(folded); err != nil || !slices.Equal(found, expected) || foldCounts(expected) != folded {
			t.Errorf("%s: %v %v %s", folded, found, err, foldCounts(expected))
		}
	}
	for _, folded := range []string{"", "x", "4(x", "4(x0)", "-1", "1(x999999999)"} {
		if found, err := counts(folded); err == nil {
			t.Errorf("%s: %v", folded, found)
		}
	}
}

func TestAPodIsKnownByItsShortAndItsLongName(t *testing.T) {
	r := run{hosts: "j-1-{rank}.run-j-1", size: 3, rank: 2}
	for name, expected := range map[string]int{"j-1-1": 1, "j-1-1.run-j-1": 1, "j-1-1.run-j-1.team.svc.cluster.local": 1, "localhost": 2} {
		if rank, known := r.rankOf(name); !known || rank != expected {
			t.Errorf("%s: %d %v", name, rank, known)
		}
	}
	for _, name := range []string{"j-1-3", "j-1-11", "j-1-1.other", "github.com"} {
		if rank, known := r.rankOf(name); known {
			t.Errorf("%s: %d", name, rank)
		}
	}
}

func TestTheOwnPodIsReachedWithoutItsName(t *testing.T) {
	named, plain := run{hosts: "j-1-{rank}.run-j-1", size: 2, rank: 1}, run{hosts: "127.88.0.{rank}", size: 2, rank: 1}
	for found, expected := range map[string]string{
		named.address(0): "j-1-0.run-j-1", named.address(1): "127.0.0.1", plain.address(0): "127.88.0.0", plain.address(1): "127.88.0.1",
	} {
		if found != expected {
			t.Errorf("%s, where %s was to come", found, expected)
		}
	}
}
