package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// HostsAtMost bounds what a folded list may stand for.
const hostsAtMost = 100_000

// Expand writes out a folded list of hosts: `a[01-03,7],b` is a01 a02 a03 a7 b. More than one pair of brackets in a
// name are read from the left.
func expand(list string) ([]string, error) {
	var hosts []string
	for _, part := range splitOutside(list) {
		if part == "" {
			continue
		}
		expanded, err := expandPart(part)
		if err != nil {
			return nil, err
		}
		if hosts = append(hosts, expanded...); len(hosts) > hostsAtMost {
			return nil, fmt.Errorf("%s: more than %d hosts", list, hostsAtMost)
		}
	}
	return hosts, nil
}

// SplitOutside splits at commas that stand outside of brackets.
func splitOutside(list string) []string {
	depth := 0
	return strings.FieldsFunc(list, func(r rune) bool {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		}
		return depth == 0 && (r == ',' || r == ' ' || r == '\n' || r == '\t')
	})
}

func expandPart(part string) ([]string, error) {
	prefix, rest, folded := strings.Cut(part, "[")
	if !folded {
		return []string{part}, nil
	}
	ranges, suffix, closed := strings.Cut(rest, "]")
	if !closed {
		return nil, fmt.Errorf("%s: a bracket is not closed", part)
	}
	tails, err := expandPart(suffix)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, each := range strings.Split(ranges, ",") {
		first, last, isRange := strings.Cut(each, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 31)
		to, err2 := strconv.ParseUint(last, 10, 31)
		if err != nil || err2 != nil || to < from || (to-from+1)*uint64(len(tails)) > hostsAtMost {
			return nil, fmt.Errorf("%s: %q is no range of numbers", part, each)
		}
		for number := from; number <= to; number++ {
			for _, tail := range tails {
				hosts = append(hosts, fmt.Sprintf("%s%0*d%s", prefix, len(first), number, tail))
			}
		}
	}
	return hosts, nil
}

// Fold writes hosts as short as Slurm does: neighbours whose names differ by the number at the end share brackets.
func fold(hosts []string) string {
	var folded []string
	for start := 0; start < len(hosts); {
		prefix, digits := splitNumber(hosts[start])
		end := start + 1
		for end < len(hosts) {
			other, number := splitNumber(hosts[end])
			if other != prefix || digits == "" || number == "" || len(number) != len(digits) && (digits[0] == '0' || number[0] == '0') {
				break
			}
			end++
		}
		if end == start+1 {
			folded = append(folded, hosts[start])
		} else {
			folded = append(folded, prefix+"["+foldNumbers(hosts[start:end], len(prefix))+"]")
		}
		start = end
	}
	return strings.Join(folded, ",")
}

func foldNumbers(hosts []string, prefix int) string {
	var ranges []string
	for start := 0; start < len(hosts); {
		end, first := start+1, hosts[start][prefix:]
		last, _ := strconv.Atoi(first)
		for end < len(hosts) {
			next, _ := strconv.Atoi(hosts[end][prefix:])
			if next != last+1 {
				break
			}
			last = next
			end++
		}
		if end > start+1 {
			first += "-" + hosts[end-1][prefix:]
		}
		ranges = append(ranges, first)
		start = end
	}
	return strings.Join(ranges, ",")
}

func splitNumber(host string) (prefix, digits string) {
	cut := len(host)
	for cut > 0 && len(host)-cut < 9 && host[cut-1] >= '0' && host[cut-1] <= '9' {
		cut--
	}
	return host[:cut], host[cut:]
}

// Counts writes out Slurm's folded counts: `4(x2),3` is 4 4 3.
func counts(folded string) ([]int, error) {
	var all []int
	for _, part := range strings.Split(folded, ",") {
		number, times, repeated := strings.Cut(strings.TrimSuffix(part, ")"), "(x")
		count, err := strconv.Atoi(number)
		repeat, err2 := 1, error(nil)
		if repeated {
			repeat, err2 = strconv.Atoi(times)
		}
		if err != nil || err2 != nil || count < 0 || repeat < 1 || len(all)+repeat > hostsAtMost {
			return nil, fmt.Errorf("%q is no list of counts as 4(x2),3", folded)
		}
		for ; repeat > 0; repeat-- {
			all = append(all, count)
		}
	}
	return all, nil
}

func foldCounts(all []int) string {
	var parts []string
	for start := 0; start < len(all); {
		end := start
		for end < len(all) && all[end] == all[start] {
			end++
		}
		part := strconv.Itoa(all[start])
		if end-start > 1 {
			part += fmt.Sprintf("(x%d)", end-start)
		}
		parts = append(parts, part)
		start = end
	}
	return strings.Join(parts, ",")
}

// Run is what the variables of a pod say about the run that it is part of.
type run struct {
	job   string
	rank  int
	size  int
	hosts string // with {rank} in the number's place
	port  string
	key   string // path
}

// ThisRun reads the variables that a pod gets.
func thisRun() (run, error) {
	found := run{hosts: os.Getenv("TESSERA_STEPS_HOSTS"), key: os.Getenv("TESSERA_STEPS_KEY"), port: os.Getenv("TESSERA_STEPS_PORT")}
	if found.hosts == "" || found.key == "" {
		return found, fmt.Errorf("TESSERA_STEPS_HOSTS and TESSERA_STEPS_KEY are not set: this is no pod of a run with steps, or its environment was cleared")
	}
	if found.port == "" {
		found.port = "29600"
	}
	var err, err2 error
	found.rank, err = strconv.Atoi(os.Getenv("TESSERA_RANK"))
	found.size, err2 = strconv.Atoi(os.Getenv("TESSERA_WORLD_SIZE"))
	if err != nil || err2 != nil || found.rank < 0 || found.rank >= found.size {
		return found, fmt.Errorf("TESSERA_RANK %q of TESSERA_WORLD_SIZE %q names no pod", os.Getenv("TESSERA_RANK"), os.Getenv("TESSERA_WORLD_SIZE"))
	}
	if found.job = os.Getenv("SLURM_JOB_ID"); found.job == "" {
		found.job = os.Getenv("TESSERA_JOB_ID")
	}
	return found, nil
}

func (r run) host(rank int) string {
	return strings.ReplaceAll(r.hosts, "{rank}", strconv.Itoa(rank))
}

// Address is where a pod is reached: the own one without a name, which may not be known yet.
func (r run) address(rank int) string {
	if host := r.host(rank); rank != r.rank || net.ParseIP(host) != nil {
		return host
	}
	return "127.0.0.1"
}

// Node is a pod's name as `hostname` prints it there: the first label, but the whole of an address.
func (r run) node(rank int) string {
	host := r.host(rank)
	if net.ParseIP(host) != nil {
		return host
	}
	label, _, _ := strings.Cut(host, ".")
	return label
}

func (r run) nodes() []string {
	nodes := make([]string, r.size)
	for rank := range nodes {
		nodes[rank] = r.node(rank)
	}
	return nodes
}

// RankOf is the pod that a name means, long or short. False: no pod of this run is called so.
func (r run) rankOf(name string) (int, bool) {
	if own, err := os.Hostname(); name == "localhost" || err == nil && name == own {
		return r.rank, true
	}
	for rank := range r.size {
		if name == r.node(rank) || name == r.host(rank) || strings.HasPrefix(name, r.host(rank)+".") {
			return rank, true
		}
	}
	return 0, false
}
