package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestWhatRunsUnderANameIsFoundByItAlone(t *testing.T) {
	folder := t.TempDir()
	for pid, line := range map[string]string{
		"7":  "/tessera/bin/tessera-steps\x00as\x00lease\x00sh\x00",
		"8":  "/tessera/bin/tessera-steps\x00as\x00other\x00sh\x00",
		"9":  "/tessera/bin/tessera-steps\x00tell\x00lease\x00USR1\x00",
		"10": "sh\x00as\x00lease\x00sh\x00",
		"11": "",
	} {
		if err := os.MkdirAll(filepath.Join(folder, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, pid, "cmdline"), []byte(line), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if found := processesAs(folder, "lease"); !slices.Equal(found, []int{7}) {
		t.Fatal(found)
	}
}

func TestWhoEntersAPodFromOutsideHasTheProgramsOfStepsAndThoseInsideKeepTheirOwn(t *testing.T) {
	t.Setenv("TESSERA_STEPS_PID", "")
	t.Setenv("PATH", "/bin")
	entered := entryEnvironment()
	program, _ := os.Executable()
	if path := valueOf(entered, "PATH"); path[:len(filepath.Dir(program))] != filepath.Dir(program) || valueOf(entered, "TESSERA_STEPS_PID") != "1" {
		t.Fatal(entered)
	}
	t.Setenv("TESSERA_STEPS_PID", "12")
	if inside := entryEnvironment(); valueOf(inside, "PATH") != "/bin" || valueOf(inside, "TESSERA_STEPS_PID") != "12" {
		t.Fatal(inside)
	}
}
