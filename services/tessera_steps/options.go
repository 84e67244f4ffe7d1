package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// How an option of srun is treated.
const (
	honoured = "honoured"
	anyway   = "true anyway"
	told     = "told"
	refused  = "refused"
)

// What stands behind an option.
const (
	noValue = iota
	aValue
	perhapsAValue // only behind = or, for a short option, in the same word
)

// Option is one of srun's: `why` is what is told, or the way out. A variable gives it where the command line does not.
type option struct {
	names    string // long, then the short letter
	kind     string
	value    int
	why      string
	variable string
	set      func(*srunPart, string) error
}

func (o option) long() string  { name, _, _ := strings.Cut(o.names, " "); return "--" + name }
func (o option) short() string { _, letter, _ := strings.Cut(o.names, " "); return letter }

const (
	ownResources = "a task shares the CPUs and the memory of its pod with the other tasks there"
	sayInJob     = "a step runs in the container of its pod: say it for the job (#SBATCH)"
)

func count(field func(*srunPart) *int) func(*srunPart, string) error {
	return func(part *srunPart, value string) error {
		number, err := strconv.Atoi(value)
		if err != nil || number < 1 || number > hostsAtMost {
			return fmt.Errorf("%q is no number from 1 on", value)
		}
		*field(part) = number
		return nil
	}
}

func text(field func(*srunPart) *string) func(*srunPart, string) error {
	return func(part *srunPart, value string) error { *field(part) = value; return nil }
}

func flag(field func(*srunPart) *bool) func(*srunPart, string) error {
	return func(part *srunPart, value string) error { *field(part) = value != "0"; return nil }
}

// Options is every option of srun in Slurm 22.05 to 25.05 that a step can have.
var options = concat(
	[]option{
		{"ntasks n", honoured, aValue, "tasks in all", "", count(func(p *srunPart) *int { return &p.tasks })},
		{"nodes N", honoured, aValue, "pods; of a range as many as there are", "", (*srunPart).setNodes},
		{"ntasks-per-node", honoured, aValue, "tasks of a pod at most; all of them without -n", "SLURM_NTASKS_PER_NODE", (*srunPart).setPerNode},
		{"cpus-per-task c", honoured, aValue, "CPUs counted for a task; implies --exact", "SRUN_CPUS_PER_TASK", count(func(p *srunPart) *int { return &p.cpus })},
		{"nodelist w", honoured, aValue, "pods that are among those of the step", "", text(func(p *srunPart) *string { return &p.wanted })},
		{"exclude x", honoured, aValue, "pods that are not", "", text(func(p *srunPart) *string { return &p.excluded })},
		{"relative r", honoured, aValue, "the first pod that counts, from 0 on", "", (*srunPart).setFirst},
		{"chdir D", honoured, aValue, "the directory of the tasks", "SLURM_WORKING_DIR", text(func(p *srunPart) *string { return &p.folder })},
		{"export", honoured, aValue, "ALL, NONE, NAME, NAME=value; beside ALL what is set already stays", "SLURM_EXPORT_ENV", text(func(p *srunPart) *string { return &p.export })},
		{"label l", honoured, noValue, "the task's number before each line, but in files of a task or pod", "SLURM_LABELIO", flag(func(p *srunPart) *bool { return &p.label })},
		{"unbuffered u", honoured, noValue, "bytes as they come, not whole lines", "SLURM_UNBUFFEREDIO", flag(func(p *srunPart) *bool { return &p.unbuffered })},
		{"kill-on-bad-exit K", honoured, perhapsAValue, "the first task that fails ends the step", "SLURM_KILL_BAD_EXIT", flag(func(p *srunPart) *bool { return &p.killOnBadExit })},
		{"wait W", honoured, aValue, "seconds from the first task's end to that of the others", "SLURM_WAIT", (*srunPart).setWait},
		{"exact", honoured, noValue, "the step takes the CPUs of its tasks alone", "SLURM_EXACT", flag(func(p *srunPart) *bool { return &p.exact })},
		{"exclusive", honoured, perhapsAValue, "as --exact", "", flag(func(p *srunPart) *bool { return &p.exact })},
		{"overlap", honoured, noValue, "the step takes no CPUs and waits for none", "SLURM_OVERLAP", flag(func(p *srunPart) *bool { return &p.overlap })},
		{"overcommit O", honoured, noValue, "more tasks than CPUs", "SLURM_OVERCOMMIT", flag(func(p *srunPart) *bool { return &p.overcommit })},
		{"distribution m", honoured, aValue, "block or cyclic over pods", "", (*srunPart).setDistribution},
		{"gpus G", honoured, aValue, "GPUs of the step, which its tasks in a pod share; 0: none", "", gpuCount(func(p *srunPart) *int { return &p.gpus })},
		{"gpus-per-node", honoured, aValue, "GPUs of the step in each pod", "SLURM_GPUS_PER_NODE", gpuCount(func(p *srunPart) *int { return &p.gpusPerNode })},
		{"gres", honoured, aValue, "gpu:NUMBER, as --gpus-per-node; none: its tasks see none", "", (*srunPart).setGres},
		{"gpus-per-task", honoured, aValue, "GPUs that a task sees alone, if its pod has more tasks of the step", "SLURM_GPUS_PER_TASK", gpuCount(func(p *srunPart) *int { return &p.gpusPerTask })},
		{"gpu-bind", honoured, aValue, "which of the step's GPUs a task sees: none, single:N, per_task:N, map_gpu:LIST, mask_gpu:LIST", "SLURM_GPU_BIND", (*srunPart).setBind},
		{"ntasks-per-gpu", honoured, aValue, "as --gpu-bind=single:N, and so many tasks, where nothing says how many", "SLURM_NTASKS_PER_GPU", count(func(p *srunPart) *int { return &p.tasksPerGPU })},
		{"input i", honoured, aValue, "all, none, a task's number, a file", "SLURM_STDINMODE", text(func(p *srunPart) *string { return &p.input })},
		{"output o", honoured, aValue, "all, none, a task's number, a file (%t %n %N %j %J %s)", "SLURM_STDOUTMODE", text(func(p *srunPart) *string { return &p.output })},
		{"error e", honoured, aValue, "as --output, which it follows", "SLURM_STDERRMODE", text(func(p *srunPart) *string { return &p.errors })},
		{"open-mode", honoured, aValue, "append or truncate", "SLURM_OPEN_MODE", (*srunPart).setOpenMode},
		{"multi-prog", honoured, noValue, "the command is a file of programs by task", "", flag(func(p *srunPart) *bool { return &p.multiProgram })},
		{"quiet Q", honoured, noValue, "no word of waiting", "", flag(func(p *srunPart) *bool { return &p.quiet })},
		{"mpi", honoured, aValue, "none, or pmi2 for programs of MPICH and Intel MPI; others are refused: start programs of OpenMPI by mpirun", "", (*srunPart).setMPI},
		{"jobid", honoured, aValue, "the own job's", "", (*srunPart).setJob},
		{"container-image", honoured, aValue, "the own pod's", "", (*srunPart).setImage},
	},
	alike(anyway, noValue, "", "no-kill k", "oversubscribe s", "disable-status X", "verbose v", "quit-on-interrupt"),
	alike(anyway, aValue, "", "job-name J", "comment", "threads", "msg-timeout", "slurmd-debug"),
	alike(told, noValue, "there is no terminal: output comes as it is", "pty"),
	alike(told, perhapsAValue, "limits are the container's", "propagate"),
	alike(told, perhapsAValue, "a step waits until there is room", "immediate I"),
	alike(told, aValue, ownResources, "mem", "mem-per-cpu", "mem-per-gpu", "cpus-per-gpu", "gpus-per-socket", "ntasks-per-core", "ntasks-per-socket", "cpu-bind", "mem-bind", "hint", "threads-per-core", "cores-per-socket",
		"sockets-per-node", "extra-node-info B", "cpu-freq", "gpu-freq", "accel-bind", "tres-bind"),
	alike(refused, aValue, "write timeout SECONDS srun", "time t"),
	alike(refused, aValue, "name the pods by -w", "nodefile F"),
	alike(refused, aValue, "the parts of one step stand behind each other with a : between them", "het-group"),
	alike(refused, aValue, "say --gpus-per-task or -c", "tres-per-task"),
	alike(refused, aValue, sayInJob, "container-mounts", "container-name", "container-env", "container-save", "container"),
	alike(refused, aValue, "say --chdir", "container-workdir"),
	alike(refused, noValue, sayInJob, "container-writable", "container-readonly", "container-mount-home", "no-container-mount-home",
		"container-remap-root", "no-container-remap-root", "container-entrypoint", "no-container-entrypoint"),
	alike(refused, aValue, "write it into the command", "prolog", "epilog", "task-prolog", "task-epilog"),
	alike(told, aValue, "a step runs in its job's pods, which the job chose", "partition p", "account A", "qos q",
		"constraint C", "reservation", "dependency d", "begin b", "licenses L", "array a"),
	alike(refused, noValue, "delete it: a task's variables are those of its step", "preserve-env E"),
	alike(refused, aValue, "copy by a step of its own: srun --ntasks-per-node=1 cp", "bcast"),
)

func alike(kind string, value int, why string, names ...string) []option {
	same := make([]option, len(names))
	for index, each := range names {
		same[index] = option{names: each, kind: kind, value: value, why: why}
	}
	return same
}

func concat(lists ...[]option) []option { return slices.Concat(lists...) }

// OptionTable is the table of docs/steps.md.
func optionTable() string {
	var lines strings.Builder
	lines.WriteString("| Option | | |\n|---|---|---|\n")
	for index := 0; index < len(options); {
		first, names := options[index], []string{}
		for index < len(options) && (len(names) == 0 || first.kind != honoured && options[index].kind == first.kind && options[index].why == first.why) {
			name := "`" + options[index].long() + "`"
			if letter := options[index].short(); letter != "" {
				name = "`-" + letter + "` " + name
			}
			names = append(names, name)
			index++
		}
		fmt.Fprintf(&lines, "| %s | %s | %s |\n", strings.Join(names, ", "), first.kind, first.why)
	}
	return lines.String()
}

// FindOption finds an option by its long name, or by the beginning of that where no other begins so.
func findOption(name string) (option, error) {
	var found []option
	for _, each := range options {
		if each.long() == "--"+name {
			return each, nil
		}
		if strings.HasPrefix(each.long(), "--"+name) {
			found = append(found, each)
		}
	}
	if len(found) != 1 {
		return option{}, fmt.Errorf("--%s: no step has this option here: delete it", name)
	}
	return found[0], nil
}

// Apply sets an option of a part. Errors: it is refused, or its value is.
func (o option) apply(part *srunPart, said, value string) error {
	switch o.kind {
	case refused:
		return fmt.Errorf("%s: refused: %s (docs/steps.md)", said, o.why)
	case told:
		part.notes = append(part.notes, fmt.Sprintf("%s is passed over: %s", said, o.why))
	case honoured:
		if err := o.set(part, value); err != nil {
			return fmt.Errorf("%s: %w", said, err)
		}
	}
	return nil
}

// ParseOptions takes options off the arguments until the first word that is none: the command begins there.
func (p *srunPart) parseOptions(arguments []string) ([]string, error) {
	for _, each := range options {
		if value := os.Getenv(each.variable); each.variable != "" && value != "" {
			if err := each.apply(p, "$"+each.variable, value); err != nil {
				return nil, err
			}
		}
	}
	p.perNodeSaid = false
	for len(arguments) > 0 {
		word := arguments[0]
		if word == "--" {
			return arguments[1:], nil
		}
		if len(word) < 2 || word[0] != '-' {
			break
		}
		var err error
		if strings.HasPrefix(word, "--") {
			arguments, err = p.parseLong(arguments)
		} else {
			arguments, err = p.parseShort(arguments)
		}
		if err != nil {
			return nil, err
		}
	}
	return arguments, nil
}

func (p *srunPart) parseLong(arguments []string) ([]string, error) {
	name, value, given := strings.Cut(arguments[0][2:], "=")
	found, err := findOption(strings.ReplaceAll(name, "_", "-"))
	if err != nil {
		return nil, err
	}
	switch rest := arguments[1:]; {
	case found.value == aValue && !given && len(rest) == 0:
		return nil, fmt.Errorf("%s has no value", found.long())
	case found.value == aValue && !given:
		return rest[1:], found.apply(p, found.long(), rest[0])
	case found.value == noValue && given:
		return nil, fmt.Errorf("%s takes no value", found.long())
	default:
		return rest, found.apply(p, found.long(), value)
	}
}

func (p *srunPart) parseShort(arguments []string) ([]string, error) {
	word, rest := arguments[0][1:], arguments[1:]
	for word != "" {
		index := slices.IndexFunc(options, func(each option) bool { return each.short() == word[:1] })
		if index < 0 {
			return nil, fmt.Errorf("-%s: no step has this option here: delete it", word[:1])
		}
		found, said := options[index], "-"+word[:1]
		word = word[1:]
		value := ""
		if found.value != noValue {
			value, word = word, ""
		}
		if found.value == aValue && value == "" {
			if len(rest) == 0 {
				return nil, fmt.Errorf("%s has no value", said)
			}
			value, rest = rest[0], rest[1:]
		}
		if err := found.apply(p, said, value); err != nil {
			return nil, err
		}
	}
	return rest, nil
}
