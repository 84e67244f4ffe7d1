package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const hostsFolder = "hosts"

// Hostfiles are the lists of the run's pods, by name within FOLDER/hosts, one pod a line in the form of each launcher.
// Tasks is how many processes a pod is for: what Slurm's variable says, else its GPUs.
var hostfiles = map[string]func(host string, tasks, gpus int) string{
	"openmpi":   func(host string, tasks, _ int) string { return fmt.Sprintf("%s slots=%d", host, tasks) },
	"mpich":     func(host string, tasks, _ int) string { return fmt.Sprintf("%s:%d", host, tasks) }, // and Intel's
	"deepspeed": func(host string, _, gpus int) string { return fmt.Sprintf("%s slots=%d", host, gpus) },
	"names":     func(host string, _, _ int) string { return host }, // pdsh, and whoever else wants names alone
}

// WriteHostfiles writes the lists as the pod's variables say who is of the run, and none where these name no pods.
func writeHostfiles(folder string) error {
	r := run{hosts: os.Getenv("TESSERA_STEPS_HOSTS")}
	if r.hosts == "" {
		return nil
	}
	var err error
	if r.size, err = strconv.Atoi(os.Getenv("TESSERA_WORLD_SIZE")); err != nil || r.size < 1 || r.size > hostsAtMost {
		return fmt.Errorf("TESSERA_WORLD_SIZE %q is no number of pods", os.Getenv("TESSERA_WORLD_SIZE"))
	}
	gpus, err := counts(cmp.Or(os.Getenv("TESSERA_STEPS_SLOTS"), fmt.Sprintf("1(x%d)", r.size)))
	if err != nil || len(gpus) != r.size {
		return fmt.Errorf("TESSERA_STEPS_SLOTS %q counts no slots of %d pods", os.Getenv("TESSERA_STEPS_SLOTS"), r.size)
	}
	tasks, err := counts(os.Getenv("SLURM_TASKS_PER_NODE"))
	if err != nil || len(tasks) != r.size {
		tasks = gpus
	}
	if err := os.MkdirAll(filepath.Join(folder, hostsFolder), 0o755); err != nil {
		return err
	}
	for name, line := range hostfiles {
		var lines strings.Builder
		for rank, host := range r.nodes() {
			if tasks[rank] > 0 { // a node of Slurm's may have none, which no launcher's list can say
				lines.WriteString(line(host, tasks[rank], gpus[rank]) + "\n")
			}
		}
		if err := os.WriteFile(filepath.Join(folder, hostsFolder, name), []byte(lines.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// LauncherVariables make launchers find the hostfiles and ssh of a folder by themselves. What the container's variables
// say stays: a list and a way of starting are ours only where both of its variables are unset. Beside Slurm's variables
// mpirun of OpenMPI, MPICH and Intel start by srun, on hosts of Slurm's list, and are told of nothing else.
func launcherVariables(container []string, folder string) []string {
	list := func(name string) string { return filepath.Join(folder, hostsFolder, name) }
	if _, err := os.Stat(list("names")); err != nil {
		return nil
	}
	ssh := filepath.Join(folder, "bin", "ssh")
	wanted := [][]string{{"WCOLL=" + list("names")}, {"PDSH_RCMD_TYPE=ssh"}}
	if valueOf(container, "SLURM_JOB_ID") == "" {
		wanted = append(wanted,
			[]string{"OMPI_MCA_plm_rsh_agent=" + ssh, "PRTE_MCA_plm_ssh_agent=" + ssh},
			[]string{"OMPI_MCA_orte_default_hostfile=" + list("openmpi"), "PRTE_MCA_prte_default_hostfile=" + list("openmpi")},
			[]string{"HYDRA_LAUNCHER=ssh", "HYDRA_LAUNCHER_EXEC=" + ssh},
			[]string{"HYDRA_HOST_FILE=" + list("mpich")},
			[]string{"I_MPI_HYDRA_BOOTSTRAP=ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC=" + ssh},
			[]string{"I_MPI_HYDRA_HOST_FILE=" + list("mpich")})
		// Intel's mpirun reads the hosts of this file alone, and takes a host's cores for its slots.
		if slots, err := counts(valueOf(container, "TESSERA_STEPS_SLOTS")); err == nil && slices.Max(slots) == slices.Min(slots) {
			wanted = append(wanted, []string{fmt.Sprintf("I_MPI_PERHOST=%d", slots[0])})
		}
	}
	var set []string
	for _, group := range wanted {
		if !slices.ContainsFunc(group, func(each string) bool { return isSet(container, each) }) {
			set = append(set, group...)
		}
	}
	return set
}

// IsSet says whether an environment has the variable of NAME=value.
func isSet(environment []string, variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return slices.ContainsFunc(environment, func(each string) bool { return strings.HasPrefix(each, name+"=") })
}
