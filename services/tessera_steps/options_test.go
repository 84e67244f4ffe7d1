package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOptionsEndWhereTheCommandBegins(t *testing.T) {
	parts, err := parseSrun([]string{"-n4", "-N", "2", "-lu", "-K0", "--ntasks-per-n=2", "--cpu_bind=cores", "python", "-n", "9", ":", "--exact", "-n", "1", "--", "x"})
	if err != nil || len(parts) != 2 {
		t.Fatal(err)
	}
	first, second := parts[0], parts[1]
	if first.tasks != 4 || first.nodes != 2 || !first.label || !first.unbuffered || first.killOnBadExit || first.perNode != 2 || len(first.notes) != 1 {
		t.Errorf("%+v", first)
	}
	if !slices.Equal(first.command, []string{"python", "-n", "9"}) || !slices.Equal(second.command, []string{"x"}) || !second.exact || second.tasks != 1 {
		t.Errorf("%v %+v", first.command, second)
	}
}

func TestWhatAStepCannotDoIsRefusedByItsName(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "7")
	t.Setenv("TESSERA_IMAGE", "nvcr.io/a:1")
	for line, expected := range map[string]string{
		"--mpi=pmix x":                       "mpirun",
		"-t 5 x":                             "timeout SECONDS srun",
		"--time=5 x":                         "timeout SECONDS srun",
		"--jobid=8 x":                        "8 is refused",
		"--container-image=b x":              `"nvcr.io/a:1"`,
		"--container-mounts=/a:/a x":         "#SBATCH",
		"--bogus x":                          "--bogus",
		"--nt x":                             "--nt:",
		"-Z x":                               "-Z",
		"-n":                                 "no value",
		"-n0 x":                              "from 1 on",
		"-n 1":                               "No command given",
		"x :":                                "No command given",
		"--label=1 x":                        "takes no value",
		"-m plane=2 x":                       "block or cyclic",
		"--gres=license:2 x":                 "gpu:NUMBER",
		"--jobid 7 --container-image=c: x":   "refused",
		"--preserve-env x":                   "--preserve-env",
		"--open-mode= x":                     "neither",
		"--nodelist=a --relative=-1 x":       "from 0 on",
		"--wait=soon x":                      "seconds",
		"--nodes=3-2 x":                      "no number of pods",
		"--distribution=arbitrary:block x":   "block or cyclic",
		"--gpus-per-task=many x":             "no number",
		"--kill-on-bad-exit=1 -t1 nothing x": "timeout",
	} {
		_, err := parseSrun(strings.Fields(line))
		if err == nil || !strings.Contains(err.Error(), expected) {
			t.Errorf("srun %s: %v", line, err)
		}
	}
	for _, line := range []string{"--mpi=none x", "--mpi=pmi2 x", "--jobid=7 x", "--container-image=docker://nvcr.io#a:1 x", "--exclusive x", "-I x", "--pty x"} {
		if _, err := parseSrun(strings.Fields(line)); err != nil {
			t.Errorf("srun %s: %v", line, err)
		}
	}
}

func TestEveryOptionSaysWhatItIs(t *testing.T) {
	seen := map[string]bool{}
	for _, each := range options {
		if seen[each.long()] || strings.Contains(each.names, " ") && seen[each.short()] {
			t.Errorf("%s is there twice", each.names)
		}
		seen[each.long()] = true
		if _, letter, short := strings.Cut(each.names, " "); short {
			seen[letter] = true
		}
		if (each.kind == honoured) != (each.set != nil) || each.kind != anyway && each.why == "" {
			t.Errorf("%s: %s: %q", each.names, each.kind, each.why)
		}
	}
}

func TestWhatIsNotSaidIsAsTheJobHasIt(t *testing.T) {
	t.Setenv("SLURM_NTASKS", "8")
	t.Setenv("SLURM_NTASKS_PER_NODE", "4")
	r := run{hosts: "n{rank}", size: 2}
	for line, expected := range map[string]ask{
		"x":                         {tasks: 8, perNode: 4, cpus: 1},
		"-N1 x":                     {tasks: 8, nodes: 1, cpus: 1},
		"-n2 x":                     {tasks: 2, perNode: 4, cpus: 1},
		"-n2 -c4 x":                 {tasks: 2, perNode: 4, cpus: 4, exact: true},
		"--ntasks-per-node=2 x":     {tasks: 8, cpus: 1},
		"-n4 --ntasks-per-node=2 x": {tasks: 4, perNode: 2, cpus: 1},
		"-N1-4 -n2 x":               {tasks: 2, nodes: 2, perNode: 4, cpus: 1},
		"-G h100:2 x":               {tasks: 8, perNode: 4, cpus: 1, gpus: 2},
	} {
		parts, err := parseSrun(strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		found, err := parts[0].ask(r)
		if err != nil || found.tasks != expected.tasks || found.nodes != expected.nodes || found.perNode != expected.perNode || found.cpus != expected.cpus || found.exact != expected.exact || found.gpus != expected.gpus {
			t.Errorf("srun %s: %+v %v", line, found, err)
		}
	}
}

func TestProgramsOfTheFileGoByTask(t *testing.T) {
	path := filepath.Join(t.TempDir(), "programs")
	os.WriteFile(path, []byte("# comment\n0-1 bash -c 'echo %t $X' \"a b\"\\ c\n2\techo %t %o\n* \\\n rest %t\n"), 0o600)
	programs, err := readPrograms(path, 4)
	if err != nil {
		t.Fatal(err)
	}
	for task, expected := range [][]string{{"bash", "-c", "echo %t $X", "a b c"}, {"bash", "-c", "echo %t $X", "a b c"}, {"echo", "2", "0"}, {"rest", "3"}} {
		if !slices.Equal(programs[task], expected) {
			t.Errorf("task %d: %q", task, programs[task])
		}
	}
	os.WriteFile(path, []byte("0 a\n"), 0o600)
	if _, err := readPrograms(path, 2); err == nil || !strings.Contains(err.Error(), "task 1") {
		t.Error(err)
	}
}

func TestNamesOfFilesAreWrittenOut(t *testing.T) {
	letters := map[byte]string{'t': "3", 'n': "1", 'N': "j-1-1", 'j': "5", 'J': "5.2", 's': "2"}
	for pattern, expected := range map[string]string{"a-%j-%s-%J": "a-5-2-5.2", "%4t.out": "0003.out", "100%%": "100%", "%N/%n": "j-1-1/1", "%q%": "%q%", "out": "out"} {
		name, ofTask := fileName(pattern, letters)
		if name != expected || ofTask != strings.ContainsAny(strings.ReplaceAll(pattern, "out", ""), "tnN") {
			t.Errorf("%s: %s %v", pattern, name, ofTask)
		}
	}
}

func TestExportSaysWhichVariablesGoAlong(t *testing.T) {
	os.Clearenv()
	for _, each := range []string{"PATH=/bin", "HOME=/root", "SLURM_NTASKS=2", "MINE=1"} {
		name, value, _ := strings.Cut(each, "=")
		t.Setenv(name, value)
	}
	for export, expected := range map[string]string{
		"":           "PATH=/bin HOME=/root SLURM_NTASKS=2 MINE=1",
		"ALL":        "PATH=/bin HOME=/root SLURM_NTASKS=2 MINE=1",
		"ALL,A=2":    "PATH=/bin HOME=/root SLURM_NTASKS=2 MINE=1 SLURM_EXPORT_ENV=ALL,A=2 A=2",
		"MINE=2,ALL": "PATH=/bin HOME=/root SLURM_NTASKS=2 MINE=1 SLURM_EXPORT_ENV=MINE=2,ALL",
		"NONE":       "SLURM_NTASKS=2 SLURM_EXPORT_ENV=NONE",
		"A=2,HOME,Q": "SLURM_NTASKS=2 SLURM_EXPORT_ENV=A=2,HOME,Q A=2 HOME=/root",
	} {
		set, _, bare := exported(export)
		if strings.Join(set, " ") != expected || bare != (export != "" && !strings.Contains(export, "ALL")) {
			t.Errorf("--export=%s: %v %v", export, set, bare)
		}
	}
}
