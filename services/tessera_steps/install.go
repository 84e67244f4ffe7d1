package main

import (
	"io"
	"os"
	"path/filepath"
)

// Install copies this program into FOLDER/bin with links by its other names, and writes lists of the run's pods. The
// names of what a pod has not lie apart, in FOLDER/fallback, at the end of PATH: where an image has one of its own, that
// comes first.
func install(folder string) int {
	if err := installInto(folder); err != nil {
		return complain("tessera-steps", 1, "not installed: %v", err)
	}
	return 0
}

func installInto(folder string) error {
	binaries, fallback := filepath.Join(folder, "bin"), filepath.Join(folder, "fallback")
	for _, each := range []string{binaries, fallback} {
		if err := os.MkdirAll(each, 0o755); err != nil {
			return err
		}
	}
	program := filepath.Join(binaries, "tessera-steps")
	if err := copyOfThisProgram(program); err != nil {
		return err
	}
	links := map[string]string{
		filepath.Join(binaries, "srun"):     "tessera-steps",
		filepath.Join(binaries, "scontrol"): "tessera-steps",
		filepath.Join(binaries, "scancel"):  "tessera-steps",
		filepath.Join(binaries, "squeue"):   "tessera-steps",
		filepath.Join(binaries, "ssh"):      "tessera-steps",
		filepath.Join(fallback, "pdsh"):     "../bin/tessera-steps",
	}
	for name := range absent {
		links[filepath.Join(fallback, name)] = "../bin/tessera-steps"
	}
	for link, target := range links {
		if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	return writeHostfiles(folder)
}

// CopyOfThisProgram appears under its name when it is whole: an init container may be started again.
func copyOfThisProgram(target string) error {
	source, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer source.Close()
	partial, err := os.OpenFile(target+".partial", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err = io.Copy(partial, source); err == nil {
		err = partial.Chmod(0o755)
	}
	if closed := partial.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(target+".partial", target)
}
