package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// TakesAll tells that a step says nothing of GPUs: it takes all that its pods have, as with Slurm.
func (a ask) takesAll() bool { return a.gpus+a.gpusPerNode+a.gpusPerTask == 0 && !a.noGPUs }

// Lends tells that a step takes GPUs which others may have too.
func (a ask) lends() bool { return a.overlap || a.sharing && a.takesAll() }

func (a ask) gpusOf(r room) []string {
	if a.lends() {
		return r.gpus
	}
	return r.freeGPUs
}

// TasksByGPUs is how many tasks a pod can take as far as its GPUs go.
func (a ask) tasksByGPUs(r room) int {
	free := len(a.gpusOf(r))
	if free < a.gpusPerNode || a.takesAll() && free < len(r.gpus) {
		return 0
	}
	if a.gpusPerTask > 0 {
		return free / a.gpusPerTask
	}
	return a.tasks
}

// GiveGPUs adds the GPUs of the step in each pod.
func (a ask) giveGPUs(chosen []room, shares []share) error {
	wanted := make([]int, len(shares))
	for index := range shares {
		wanted[index] = max(a.gpusPerNode, a.gpusPerTask*shares[index].tasks)
		if a.takesAll() {
			wanted[index] = len(chosen[index].gpus)
		}
	}
	if a.gpusPerTask == 0 && a.gpusPerNode == 0 {
		for left, given := a.gpus, true; left > 0; {
			if !given {
				return refusal("Invalid generic resource (gres) specification")
			}
			given = false
			for index := range shares {
				if left > 0 && wanted[index] < len(a.gpusOf(chosen[index])) {
					wanted[index]++
					left--
					given = true
				}
			}
		}
	}
	for index := range shares {
		shares[index].gpus, shares[index].lent = slices.Clone(a.gpusOf(chosen[index])[:wanted[index]]), a.lends()
	}
	return nil
}

func (p *srunPart) setGres(value string) error {
	if value == "none" {
		value = "gpu:0"
	}
	name, rest, typed := strings.Cut(value, ":")
	if name != "gpu" || strings.Contains(value, ",") {
		return fmt.Errorf("%q: refused: a step counts GPUs alone: write gpu:NUMBER", value)
	}
	if !typed {
		rest = "1"
	}
	return gpuCount(func(p *srunPart) *int { return &p.gpusPerNode })(p, rest)
}

// GPUCount reads a number of GPUs, perhaps with a model before it (h100:2); 0 is none at all.
func gpuCount(field func(*srunPart) *int) func(*srunPart, string) error {
	return func(part *srunPart, value string) error {
		number, err := strconv.Atoi(value[strings.LastIndex(value, ":")+1:])
		if err != nil || number < 0 || number > hostsAtMost {
			return fmt.Errorf("%q is no number", value)
		}
		*field(part) = number
		part.noGPUs = number == 0
		return nil
	}
}

func (p *srunPart) setBind(value string) error {
	found, err := parseBind(value)
	if err == nil && found.kind == "closest" {
		p.notes = append(p.notes, "--gpu-bind=closest is passed over: it is not known which GPUs are near a task's CPUs, so that it sees all of the step's")
	}
	p.gpuBind = value
	return err
}

// AskGPUs says what GPUs a part asks for. With --ntasks-per-gpu there are as many tasks as that makes, where nothing says how many.
func (p *srunPart) askGPUs(asked *ask, nodes int) {
	asked.gpus, asked.gpusPerNode, asked.gpusPerTask, asked.gpuBind = p.gpus, p.gpusPerNode, p.gpusPerTask, p.gpuBind
	if p.gpusPerTask > 0 {
		asked.gpus = 0
	}
	if p.noGPUs {
		asked.noGPUs, asked.gpus, asked.gpusPerNode, asked.gpusPerTask = true, 0, 0, 0
	}
	if p.tasksPerGPU > 0 && asked.gpuBind == "" {
		asked.gpuBind = "single:" + strconv.Itoa(p.tasksPerGPU)
	}
	if asked.tasks == 0 {
		asked.tasks = p.tasksPerGPU * max(p.gpus, p.gpusPerNode*nodes)
	}
}

// Bind is how the tasks of a step in one pod divide its GPUs: kind and values of --gpu-bind.
type bind struct {
	kind   string
	values []int
}

// ParseBind reads the value of --gpu-bind: none, closest, single:N, per_task:N, map_gpu:LIST or mask_gpu:LIST, each with verbose before it.
func parseBind(value string) (bind, error) {
	for _, word := range []string{"verbose,", "v,", "gpu:"} {
		value = strings.TrimPrefix(value, word)
	}
	kind, rest, _ := strings.Cut(value, ":")
	base := 10
	switch kind {
	case "none", "closest":
		if rest == "" {
			return bind{kind: kind}, nil
		}
	case "mask_gpu":
		base = 16
		fallthrough
	case "single", "per_task", "map_gpu":
		numbers, err := bindValues(rest, base)
		one := kind == "single" || kind == "per_task"
		if err == nil && (!one || len(numbers) == 1 && numbers[0] > 0) {
			return bind{kind, numbers}, nil
		}
	}
	return bind{}, fmt.Errorf("%q is neither none, closest, single:NUMBER, per_task:NUMBER, map_gpu:LIST nor mask_gpu:LIST", value)
}

// BindValues are the numbers of a list, each with how often: 0*2,1.
func bindValues(list string, base int) ([]int, error) {
	var values []int
	for _, each := range strings.Split(list, ",") {
		text, often, repeated := strings.Cut(each, "*")
		if base == 16 {
			text = strings.TrimPrefix(strings.ToLower(text), "0x")
		}
		number, err := strconv.ParseUint(text, base, 62)
		times := uint64(1)
		if err == nil && repeated {
			times, err = strconv.ParseUint(often, 10, 16)
		}
		if err != nil || len(values)+int(times) > hostsAtMost {
			return nil, fmt.Errorf("%q is no list of numbers", list)
		}
		values = append(values, slices.Repeat([]int{int(number)}, int(times))...)
	}
	return values, nil
}

// BindOf is how the tasks of a step divide the GPUs that it has in a pod; all see all where nothing says more.
func (a ask) bindOf() bind {
	if found, err := parseBind(a.gpuBind); a.gpuBind != "" && err == nil {
		return found
	}
	if a.gpusPerTask > 0 {
		return bind{"per_task", []int{a.gpusPerTask}}
	}
	return bind{kind: "none"}
}

// Visible are the GPUs that task `index` of so many in a pod sees; false: its --gpu-bind names none there, and it has the first
// one. A task alone in its pod sees all of the step's there, as with Slurm, whatever is said.
func (b bind) visible(gpus []string, index, tasks int) ([]string, bool) {
	if tasks < 2 || len(gpus) == 0 || len(b.values) == 0 {
		return gpus, true
	}
	var seen []string
	switch number := b.values[index%len(b.values)]; b.kind {
	case "single":
		seen = gpus[index/number%len(gpus):][:1]
	case "per_task":
		if end := (index + 1) * number; end <= len(gpus) {
			seen = gpus[end-number : end]
		}
	case "map_gpu":
		if number < len(gpus) {
			seen = gpus[number:][:1]
		}
	case "mask_gpu":
		for at, gpu := range gpus {
			if number>>at&1 == 1 {
				seen = append(seen, gpu)
			}
		}
	}
	if len(seen) == 0 {
		return gpus[:1], false
	}
	return seen, true
}

// GPUsOfTask are the variables of GPUs of task `id`, which is number `index` of its share, as Slurm sets them; a step without
// GPUs hides those of its pod.
func gpusOfTask(id int, of share, index int, asked ask) []string {
	if asked.noGPUs {
		return []string{"CUDA_VISIBLE_DEVICES=", "SLURM_STEP_GPUS=", "SLURM_GPUS_ON_NODE=0"}
	}
	if len(of.gpus) == 0 {
		return nil
	}
	seen, named := asked.bindOf().visible(of.gpus, index, of.tasks)
	if !named {
		fmt.Fprintf(os.Stderr, "srun: Warning: task %d: its pod has %d GPUs of the step, none of which is meant for it: it sees the first one\n", id, len(of.gpus))
	}
	list := strings.Join(seen, ",")
	return []string{"CUDA_VISIBLE_DEVICES=" + list, "SLURM_STEP_GPUS=" + list, "SLURM_GPUS_ON_NODE=" + strconv.Itoa(len(of.gpus))}
}
