package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What a job says reaches its steps by these variables, as with Slurm.
var jobsWithGPUs = map[string]map[string]string{
	"--gres=gpu:4":                            {},
	"--gpus-per-node=4":                       {"SLURM_GPUS_PER_NODE": "4"},
	"--gpus-per-task=2":                       {"SLURM_GPUS_PER_TASK": "2"},
	"--gpus-per-task=2 --gpus-per-node=4":     {"SLURM_GPUS_PER_TASK": "2", "SLURM_GPUS_PER_NODE": "4"},
	"--gpus-per-node=4 --gpu-bind=single:1":   {"SLURM_GPUS_PER_NODE": "4", "SLURM_GPU_BIND": "single:1"},
	"--gpus-per-node=4 --ntasks-per-gpu=2":    {"SLURM_GPUS_PER_NODE": "4", "SLURM_NTASKS_PER_GPU": "2", "SLURM_NTASKS": "8"},
	"--gpus-per-task=2 --gpu-bind=none":       {"SLURM_GPUS_PER_TASK": "2", "SLURM_GPU_BIND": "none"},
	"--gpus-per-node=h100:4 (with its model)": {"SLURM_GPUS_PER_NODE": "h100:4"},
}

func TestATaskSeesTheGPUsThatTheRealSlurmShowedIt(t *testing.T) {
	for _, each := range []struct {
		nodes               int
		job, step, expected string
	}{
		// What each task sees in its pod, and how many GPUs the step has there. One node, then two, with four GPUs each.
		{1, "--gres=gpu:4", "-n2", "0,1,2,3/4 0,1,2,3/4"},
		{1, "--gres=gpu:4", "-n1 --gpus-per-task=1", "0/1"},
		{1, "--gres=gpu:4", "-n1 --gpus-per-task=2", "0,1/2"},
		{1, "--gres=gpu:4", "-n2 --gpus-per-task=1", "0/2 1/2"},
		{1, "--gres=gpu:4", "-n2 --gpus-per-task=2", "0,1/4 2,3/4"},
		{1, "--gres=gpu:4", "-n1 --gpus=1", "0/1"},
		{1, "--gres=gpu:4", "-n2 --gpus=2", "0,1/2 0,1/2"},
		{1, "--gres=gpu:4", "-n2 --gres=gpu:2", "0,1/2 0,1/2"},
		{1, "--gres=gpu:4", "-n2 --gpus-per-node=2 --gpus-per-task=1", "0/2 1/2"},
		{1, "--gres=gpu:4", "-n2 --gpu-bind=single:1", "0/4 1/4"},
		{1, "--gres=gpu:4", "-n2 --gpu-bind=verbose,single:1", "0/4 1/4"},
		{1, "--gres=gpu:4", "-n4 --gpus=2 --gpu-bind=single:1", "0/2 1/2 0/2 1/2"},
		{1, "--gres=gpu:4", "-n4 --gpus=2 --gpu-bind=single:2", "0/2 0/2 1/2 1/2"},
		{1, "--gres=gpu:4", "-n2 --gpu-bind=per_task:2", "0,1/4 2,3/4"},
		{1, "--gres=gpu:4", "-n4 --gpu-bind=per_task:2", "0,1/4 2,3/4 0/4 0/4"},
		{1, "--gres=gpu:4", "-n4 --gpu-bind=map_gpu:0,1", "0/4 1/4 0/4 1/4"},
		{1, "--gres=gpu:4", "-n4 --gpu-bind=map_gpu:3,2,1,0", "3/4 2/4 1/4 0/4"},
		{1, "--gres=gpu:4", "-n4 --gpu-bind=map_gpu:0*2,1*2", "0/4 0/4 1/4 1/4"},
		{1, "--gres=gpu:4", "-n2 --gpu-bind=map_gpu:9", "0/4 0/4"},
		{1, "--gres=gpu:4", "-n2 --gpu-bind=mask_gpu:0x3,0xc", "0,1/4 2,3/4"},
		{1, "--gres=gpu:4", "-n2 --gpu-bind=mask_gpu:3", "0,1/4 0,1/4"},
		{1, "--gres=gpu:4", "-n2 --gpu-bind=closest", "0,1,2,3/4 0,1,2,3/4"},
		{1, "--gres=gpu:4", "-n4 --ntasks-per-gpu=2 --gpus=2", "0/2 0/2 1/2 1/2"},
		{1, "--gpus-per-node=4", "-n1 --gpus-per-task=1", "0,1,2,3/4"},
		{1, "--gpus-per-node=4", "-n1 --exact --gpus-per-task=1", "0,1,2,3/4"},
		{1, "--gpus-per-node=4", "-n1 --overlap --gpus-per-task=1", "0,1,2,3/4"},
		{1, "--gpus-per-node=4", "-n2 --gpus-per-task=1", "0/4 1/4"},
		{1, "--gpus-per-node=4", "-n1 --gpus=1", "0,1,2,3/4"},
		{1, "--gpus-per-node=4", "-n1 --gres=gpu:1", "0/1"},
		{1, "--gpus-per-node=4", "-n1 --gpus-per-node=1", "0/1"},
		{1, "--gpus-per-node=h100:4 (with its model)", "-n1 --gpus=1", "0,1,2,3/4"},
		{1, "--gpus-per-task=2", "-n2", "0,1/4 2,3/4"},
		{1, "--gpus-per-task=2", "-n1 --gpus=1", "0,1/2"},
		{1, "--gpus-per-task=2", "-n1 --gpus-per-task=1", "0/1"},
		{1, "--gpus-per-task=2 --gpus-per-node=4", "-n1 --gpus-per-task=1", "0,1,2,3/4"},
		{1, "--gpus-per-task=2 --gpus-per-node=4", "-n2 --gpus-per-task=1", "0/4 1/4"},
		{1, "--gpus-per-node=4 --gpu-bind=single:1", "-n2", "0/4 1/4"},
		{1, "--gpus-per-node=4 --gpu-bind=single:1", "-n1", "0,1,2,3/4"},
		{1, "--gpus-per-node=4 --gpu-bind=single:1", "-n2 --gpus-per-task=2", "0/4 1/4"},
		{1, "--gpus-per-node=4 --gpu-bind=single:1", "-n2 --gres=gpu:2", "0/2 1/2"},
		{1, "--gpus-per-node=4 --ntasks-per-gpu=2", "", "0/4 0/4 1/4 1/4 2/4 2/4 3/4 3/4"},
		{2, "--gres=gpu:4", "-n2 --gpus=2", "0/1 0/1"},
		{2, "--gres=gpu:4", "-n4 --gpus=3", "0,1/2 0,1/2 0/1 0/1"},
		{2, "--gres=gpu:4", "-N1 -n2 --gpus=2", "0,1/2 0,1/2"},
		{2, "--gpus-per-node=4", "-n4", "0,1,2,3/4 0,1,2,3/4 0,1,2,3/4 0,1,2,3/4"},
		{2, "--gpus-per-node=4", "-n2 --gpus-per-task=1", "0,1,2,3/4 0,1,2,3/4"},
		{2, "--gpus-per-node=4", "-n2 --gpus-per-node=2 --gpus-per-task=1", "0,1/2 0,1/2"},
		{2, "--gpus-per-node=4", "-n4 --gpu-bind=single:1", "0/4 1/4 0/4 1/4"},
		// Slurm unsets what a step without GPUs would see, which in a container would show all; or refuses it.
		{1, "--gres=gpu:4", "-n1 --gres=none", "/0"},
		{1, "--gpus-per-node=4", "-n1 --gpus=0", "/0"},
		// And where binding is turned off, it has them found out: here they are named.
		{1, "--gpus-per-task=2 --gpu-bind=none", "-n2", "0,1,2,3/4 0,1,2,3/4"},
	} {
		t.Run(fmt.Sprintf("%d %s srun %s", each.nodes, each.job, each.step), func(t *testing.T) {
			job, known := jobsWithGPUs[each.job]
			if !known {
				t.Fatal("no such job")
			}
			for name, value := range job {
				t.Setenv(name, value)
			}
			rooms := twoPods()[:each.nodes]
			for index := range rooms {
				rooms[index].cpus, rooms[index].freeCPUs = 8, 8
			}
			parts, err := parseSrun(strings.Fields(each.step + " x"))
			if err != nil {
				t.Fatal(err)
			}
			asked, err := parts[0].ask(run{hosts: "n{rank}", size: len(rooms)})
			if err != nil {
				t.Fatal(err)
			}
			shares, err := placeStep(rooms, []ask{asked})
			if err != nil {
				t.Fatal(err)
			}
			if found := seenByTasks(shares, asked); found != each.expected {
				t.Errorf("%s, where the real one has %s", found, each.expected)
			}
		})
	}
}

func seenByTasks(shares []share, asked ask) string {
	var seen []string
	for _, share := range shares {
		for index := range share.tasks {
			set := gpusOfTask(len(seen), share, index, asked)
			value := func(at int) string { _, value, _ := strings.Cut(set[at], "="); return value }
			if value(0) != value(1) {
				return fmt.Sprintf("SLURM_STEP_GPUS is not CUDA_VISIBLE_DEVICES: %q", set)
			}
			seen = append(seen, value(0)+"/"+value(2))
		}
	}
	return strings.Join(seen, " ")
}

// In Slurm, too, steps side by side need GPUs of their own by number: else each has all of its pods' and waits for the others.
func TestStepsSideBySideShareNoGPUUnlessTheyOverlap(t *testing.T) {
	one := ask{tasks: 1, nodes: 1, exact: true, gpusPerTask: 1}
	rooms := twoPods()[:1]
	if found := inTurn(rooms, one, one, one, one, one); !slices.Equal(found, []string{"0", "1", "2", "3", "Requested nodes are busy"}) {
		t.Error(found)
	}
	all := ask{tasks: 1, nodes: 1, exact: true}
	rooms = twoPods()[:1]
	if found := inTurn(rooms, all, all); !slices.Equal(found, []string{"0,1,2,3", "Requested nodes are busy"}) {
		t.Error(found)
	}
	beside := ask{tasks: 1, nodes: 1, overlap: true}
	none := ask{tasks: 1, nodes: 1, exact: true, noGPUs: true}
	if found := inTurn(rooms, beside, none); !slices.Equal(found, []string{"0,1,2,3", ""}) {
		t.Error(found)
	}
}

func inTurn(rooms []room, asks ...ask) []string {
	var found []string
	for _, each := range asks {
		shares, err := placeStep(rooms, []ask{each})
		if err != nil {
			found = append(found, err.Error())
			continue
		}
		take(rooms, shares, 1)
		found = append(found, strings.Join(shares[0].gpus, ","))
	}
	return found
}

func TestAWordOfGPUBindThatIsNoneIsRefused(t *testing.T) {
	for _, value := range []string{"", "foo", "single", "single:0", "single:1,2", "per_task:x", "map_gpu:", "map_gpu:0,a", "mask_gpu:0xg", "map_gpu:0*99999999"} {
		if found, err := parseBind(value); err == nil {
			t.Errorf("%q: %v", value, found)
		}
	}
}
