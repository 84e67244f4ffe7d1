package main

import (
	"cmp"
	"fmt"
	"slices"
)

// Ask is where and with what the tasks of a step, or of one part of it, may run.
type ask struct {
	tasks       int
	nodes       int // 0: as many pods as there are, and tasks
	perNode     int // at most so many tasks in a pod; 0: no bound
	cpus        int // of a task
	first       int // the first pod that counts (--relative)
	wanted      []int
	excluded    []int
	exact       bool // takes the CPUs of its tasks alone, not the whole of its pods
	overlap     bool // takes none
	overcommit  bool // more tasks than CPUs
	gpusPerTask int
	gpusPerNode int
	gpus        int // of the step, over its pods
	noGPUs      bool
	gpuBind     string // which of them each task sees: what srun alone needs to know
	sharing     bool   // with other parts of the step, in one pod
}

func (a *ask) fields(c *coder) {
	for _, each := range []*int{&a.tasks, &a.nodes, &a.perNode, &a.cpus, &a.first, &a.gpusPerTask, &a.gpusPerNode, &a.gpus} {
		c.number(each)
	}
	for _, each := range []*[]int{&a.wanted, &a.excluded} {
		list(c, each, func(rank *int) { c.number(rank) })
	}
	c.flag(&a.exact)
	c.flag(&a.overlap)
	c.flag(&a.overcommit)
	c.flag(&a.noGPUs)
}

// Room is a pod as steps see it: its CPUs and GPUs, and which of them no step has.
type room struct {
	rank     int
	cpus     int
	freeCPUs int
	gpus     []string
	freeGPUs []string
}

// Share is what a part of a step has of one pod.
type share struct {
	part  int
	rank  int
	tasks int
	cpus  int
	gpus  []string
	lent  bool // its GPUs are other shares' too
}

func (s *share) fields(c *coder) {
	for _, each := range []*int{&s.part, &s.rank, &s.tasks, &s.cpus} {
		c.number(each)
	}
	c.texts(&s.gpus)
	c.flag(&s.lent)
}

// Busy is why a step waits: others have what it needs.
const busy = refusal("Requested nodes are busy")

// PlaceStep places the parts of a step, each on pods that no part before it is on, or where that cannot be, on the CPUs
// that those leave. Errors: busy, or a refusal that stays one.
func placeStep(rooms []room, parts []ask) ([]share, error) {
	placed, err := placeParts(rooms, parts)
	if err == nil {
		return placed, nil
	}
	empty := slices.Clone(rooms)
	for index := range empty {
		empty[index].freeCPUs, empty[index].freeGPUs = empty[index].cpus, empty[index].gpus
	}
	if _, never := placeParts(empty, parts); never != nil {
		return nil, never
	}
	return nil, busy
}

func placeParts(rooms []room, parts []ask) ([]share, error) {
	placed, err := placeInTurn(rooms, parts)
	if err == nil || len(parts) == 1 {
		return placed, err
	}
	sharing := slices.Clone(parts)
	for index := range sharing {
		sharing[index].exact, sharing[index].sharing = true, true
	}
	return placeInTurn(rooms, sharing)
}

func placeInTurn(rooms []room, parts []ask) ([]share, error) {
	rooms = slices.Clone(rooms)
	var placed []share
	for part, asked := range parts {
		shares, err := placePart(rooms, asked, part)
		if err != nil {
			return nil, err
		}
		take(rooms, shares, 1)
		placed = append(placed, shares...)
	}
	return placed, nil
}

// Take takes the CPUs and GPUs of shares out of the rooms, or gives them back where the sign is -1.
func take(rooms []room, shares []share, sign int) {
	for _, each := range shares {
		room := &rooms[each.rank]
		room.freeCPUs -= sign * each.cpus
		if each.lent {
			continue
		}
		if sign > 0 {
			room.freeGPUs = slices.DeleteFunc(slices.Clone(room.freeGPUs), func(gpu string) bool { return slices.Contains(each.gpus, gpu) })
			continue
		}
		held := append(slices.Clone(room.freeGPUs), each.gpus...)
		room.freeGPUs = slices.DeleteFunc(slices.Clone(room.gpus), func(gpu string) bool { return !slices.Contains(held, gpu) })
	}
}

func placePart(rooms []room, asked ask, part int) ([]share, error) {
	var eligible []room
	for _, each := range rooms[min(asked.first, len(rooms)):] {
		if !slices.Contains(asked.excluded, each.rank) {
			eligible = append(eligible, each)
		}
	}
	if asked.nodes > len(eligible) {
		return nil, refusal(fmt.Sprintf("Only allocated %d nodes asked for %d", len(eligible), asked.nodes))
	}
	count := asked.nodes
	if count == 0 {
		count = len(eligible)
	}
	count = min(count, asked.tasks)
	isWanted := func(r room) int { return boolAsInt(!slices.Contains(asked.wanted, r.rank)) }
	isIdle := func(r room) int { return boolAsInt(r.freeCPUs < r.cpus) }
	orders := []func(a, b room) int{
		func(a, b room) int {
			return cmp.Or(cmp.Compare(isWanted(a), isWanted(b)), cmp.Compare(isIdle(a), isIdle(b)), cmp.Compare(a.rank, b.rank))
		},
		func(a, b room) int {
			return cmp.Or(cmp.Compare(isWanted(a), isWanted(b)), cmp.Compare(asked.capacity(b), asked.capacity(a)), cmp.Compare(a.rank, b.rank))
		},
	}
	var err error
	for _, order := range orders {
		slices.SortFunc(eligible, order)
		var shares []share
		if shares, err = asked.spread(eligible, count, part); err == nil {
			return shares, nil
		}
	}
	return nil, err
}

func boolAsInt(value bool) int {
	if value {
		return 1
	}
	return 0
}

// Capacity is how many tasks a pod can take.
func (a ask) capacity(r room) int {
	tasks := r.freeCPUs / max(a.cpus, 1)
	if a.overlap {
		tasks = r.cpus / max(a.cpus, 1)
	} else if !a.exact && r.freeCPUs < r.cpus {
		tasks = 0
	}
	if a.overcommit && (tasks > 0 || a.overlap || a.exact || r.freeCPUs == r.cpus) {
		tasks = a.tasks
	}
	if a.perNode > 0 {
		tasks = min(tasks, a.perNode)
	}
	return min(tasks, a.tasksByGPUs(r))
}

// Spread gives each of the first pods that can take one a task in turn, as Slurm does, until all have a place.
func (a ask) spread(eligible []room, count, part int) ([]share, error) {
	var chosen []room
	for index, each := range eligible {
		if len(chosen) < count && a.capacity(each) > 0 {
			chosen = append(chosen, each)
		} else if index < count && slices.Contains(a.wanted, each.rank) {
			return nil, refusal("More processors requested than permitted on the nodes of -w")
		}
	}
	total := 0
	for _, each := range chosen {
		total += a.capacity(each)
	}
	if total < a.tasks || len(chosen) < min(a.nodes, count) {
		if a.gpusPerTask+a.gpusPerNode > 0 {
			return nil, refusal("Invalid generic resource (gres) specification, or more processors requested than permitted")
		}
		return nil, refusal("More processors requested than permitted")
	}
	slices.SortFunc(chosen, func(x, y room) int { return cmp.Compare(x.rank, y.rank) })
	tasks := make([]int, len(chosen))
	for left := a.tasks; left > 0; {
		for index := range chosen {
			if left > 0 && tasks[index] < a.capacity(chosen[index]) {
				tasks[index]++
				left--
			}
		}
	}
	shares := make([]share, len(chosen))
	for index, each := range chosen {
		shares[index] = share{part: part, rank: each.rank, tasks: tasks[index], cpus: each.cpus}
		if a.overlap {
			shares[index].cpus = 0
		} else if a.exact {
			shares[index].cpus = min(tasks[index]*max(a.cpus, 1), each.freeCPUs)
		}
	}
	return shares, a.giveGPUs(chosen, shares)
}
