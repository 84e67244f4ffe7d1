package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

func steps100(count int, name string) *stepList {
	list, at := &stepList{}, time.Unix(1_764_300_000, 0)
	for number := range count {
		list.begin(number, name, 8, at.Add(time.Duration(number)*time.Minute))
		list.end(number, number%3, at.Add(time.Duration(number)*time.Minute+59*time.Second))
	}
	return list
}

func wordOf(t *testing.T, line []byte) lastWord {
	t.Helper()
	rest, marked := strings.CutPrefix(string(line), wordMark)
	var word lastWord
	if err := json.Unmarshal([]byte(rest), &word); err != nil || !marked {
		t.Fatalf("%v: %s", err, line)
	}
	return word
}

func TestAWordHasTheFirstAndTheLastHundredSteps(t *testing.T) {
	word := wordOf(t, steps100(250, "x").word("", "", wordBytes))
	if word.Steps != 250 || len(word.Head) != 100 || len(word.Tail) != 100 {
		t.Errorf("%d %d %d", word.Steps, len(word.Head), len(word.Tail))
	}
	if first := word.Head[0]; first[0] != "x" || first[1] != 8.0 || first[2] != 0.0 || first[3] != 59.0 {
		t.Error(first)
	}
	if after := word.Tail[0]; after[0] != "" || after[2] != 51*60.0 { // from step 99 to step 150
		t.Error(after)
	}
}

func TestNamesAreCutBeforeStepsAreLeftOutAndTheMiddleBeforeTheEnds(t *testing.T) {
	list := &stepList{}
	for number := range 150 {
		list.begin(number, strings.Repeat("é", 16)+string(rune('a'+number%26)), 1, time.Unix(int64(number), 0))
		list.end(number, 0, time.Unix(int64(number)+1, 0))
	}
	line := list.word(wishRequeue, "who", 4096)
	word := wordOf(t, line)
	if len(line) > 4096 || !utf8.Valid(line) || word.Ask != wishRequeue || word.Steps != 150 {
		t.Errorf("%d bytes: %s", len(line), line)
	}
	if len(word.Head)+len(word.Tail) < 120 || len(word.Head) < 60 || len(word.Tail) < 50 {
		t.Errorf("%d and %d steps", len(word.Head), len(word.Tail))
	}
	if small := wordOf(t, list.word(wishCancel, "who", 400)); small.Ask != wishCancel || small.Steps != 150 || len(small.Head) == 0 || len(small.Tail) == 0 {
		t.Errorf("%+v", small)
	}
}

func TestTheWordStandsBehindWhatTheProgramWrote(t *testing.T) {
	for name, each := range map[string]struct{ said, kept string }{
		"nothing": {"", ""},
		"a line":  {"out of memory in layer 7", "out of memory in layer 7\n"},
		"as much": {strings.Repeat("é", 2048), strings.Repeat("é", 1536) + "\n"},
	} {
		path := filepath.Join(t.TempDir(), "log")
		t.Setenv("TESSERA_STEPS_LAST_WORD", path)
		os.WriteFile(path, []byte(each.said), 0o600)
		if err := writeWord(wishRequeue, "who", steps100(250, "x")); err != nil {
			t.Fatal(err)
		}
		found, _ := os.ReadFile(path)
		said, line, _ := strings.Cut(string(found), wordMark)
		if said != each.kept || len(found) > wordBytes {
			t.Errorf("%s: %d bytes, %q", name, len(found), said)
		}
		wordOf(t, []byte(wordMark+line))
	}
}

func TestAPodWithoutAWordWritesNothingAndMakesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	t.Setenv("TESSERA_STEPS_LAST_WORD", path)
	if err := writeWord("", "", &stepList{}); err != nil {
		t.Error(err)
	}
	if err := writeWord(wishCancel, "", &stepList{}); !os.IsNotExist(err) {
		t.Error(err)
	}
	f := newFirstPod(run{hosts: "p{rank}", size: 1})
	f.commandRuns(1 << 30)
	if err := f.grant(&wishMessage{wish: wishRequeue}); err == nil || !strings.Contains(err.Error(), "last word") {
		t.Error(err)
	}
}

func TestOfAWishForAnEndTheStrongerOneStands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	os.WriteFile(path, nil, 0o600)
	t.Setenv("TESSERA_STEPS_LAST_WORD", path)
	f := newFirstPod(run{hosts: "p{rank}", size: 1})
	if err := f.grant(&wishMessage{wish: wishCancel}); err == nil {
		t.Error("a run without a command was ended")
	}
	f.commandRuns(1 << 30)
	for _, each := range []struct {
		wish    string
		granted bool
	}{{"dance", false}, {wishRequeue, true}, {wishRequeue, true}, {wishCancel, true}, {wishRequeue, false}} {
		if err := f.grant(&wishMessage{wish: each.wish, who: each.wish}); (err == nil) != each.granted {
			t.Errorf("%s: %v", each.wish, err)
		}
	}
	if code := f.sayLastWord(0); code != wordExitCode {
		t.Error(code)
	}
	if line, _ := os.ReadFile(path); wordOf(t, line).Ask != wishCancel {
		t.Errorf("%s", line)
	}
}

func TestAnotherJobIsRefusedByNameWithTheWayOut(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "17")
	t.Setenv("SLURM_ARRAY_JOB_ID", "12")
	t.Setenv("SLURM_ARRAY_TASK_ID", "4")
	for _, own := range []string{"17", "12_4"} {
		if err := isOwnJob(own, "tessera scancel"); err != nil {
			t.Error(err)
		}
	}
	for _, other := range []string{"18", "12", "12_5", ""} {
		if err := isOwnJob(other, "tessera scancel"); err == nil || !strings.Contains(err.Error(), "write tessera scancel "+other) {
			t.Errorf("%s: %v", other, err)
		}
	}
}

func TestWhatScancelAsksFor(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "17")
	usr1 := int(syscall.SIGUSR1)
	for line, expected := range map[string][]wishMessage{
		"17":                     {{wish: wishCancel}},
		"-s KILL 17":             {{wish: wishCancel}},
		"-sUSR1 17":              {{wish: wishSignal, signal: usr1, step: allSteps}},
		"--signal=SIGUSR1 -b 17": {{wish: wishSignal, signal: usr1, step: batchStep}},
		"-s USR1 -f 17":          {{wish: wishSignal, signal: usr1, step: allSteps}, {wish: wishSignal, signal: usr1, step: batchStep}},
		"-Q 17.3":                {{wish: wishEndStep, step: 3}},
		"--signal USR1 17.3":     {{wish: wishSignal, signal: usr1, step: 3}},
		"-s 10 17.batch":         {{wish: wishSignal, signal: usr1, step: batchStep}},
	} {
		said, err := parseScancel(strings.Fields(line))
		if err != nil {
			t.Error(line, err)
			continue
		}
		_, step, _ := stepOf(said.named[0])
		found := said.wishes(step)
		if len(found) != len(expected) {
			t.Errorf("%s: %+v", line, found)
			continue
		}
		for index := range found {
			found[index].who = ""
			if found[index] != expected[index] {
				t.Errorf("%s: %+v", line, found[index])
			}
		}
	}
	for _, line := range []string{"", "-u me", "--me", "-n train", "--frob 17", "-s DANCE 17", "-s"} {
		if _, err := parseScancel(strings.Fields(line)); err == nil {
			t.Error(line)
		}
	}
}

func TestSqueueShowsTheOwnJobByAFormat(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "17")
	t.Setenv("SLURM_JOB_NAME", "training-of-it")
	now := time.Unix(1_764_300_000, 0)
	job := jobHere{run: run{job: "17", hosts: "p{rank}.svc", size: 3}, began: now.Add(-90 * time.Minute), now: now}
	for format, expected := range map[string][2]string{
		"%i %t %M %D %R": {"JOBID ST TIME NODES NODELIST(REASON)", "17 R 1:30:00 3 p[0-2]"},
		"%.8j|%5t|%L|%l": {"    NAME|ST   |TIME_LEFT|TIME_LIMIT", "training|R    |N/A|N/A"},
		"%T":             {"STATE", "RUNNING"},
	} {
		titles, row, err := formatted(format, job)
		if err != nil || titles != expected[0] || row != expected[1] {
			t.Errorf("%s: %q %q %v", format, titles, row, err)
		}
	}
	job.ends = now.Add(2 * time.Hour)
	if _, row, _ := formatted("%L %l", job); row != "2:00:00 3:30:00" {
		t.Error(row)
	}
	for _, format := range []string{"%Q", "%", "%.8"} {
		if _, _, err := formatted(format, job); err == nil {
			t.Error(format)
		}
	}
}
