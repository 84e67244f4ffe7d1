package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"unicode/utf8"
)

const (
	terminationLog = "/dev/termination-log" // where the kubelet reads the message of a container that has ended
	wordBytes      = 4096                   // the most that it takes, from the file's end
	wordMark       = "tessera-steps/1 "     // how the last line of it begins; the number is the word's version
	programsBytes  = 3072                   // of that, the most that the end of the program's own message keeps
	stepsAtEachEnd = 100
	whoBytes       = 160
	wordExitCode   = 75 // EX_TEMPFAIL: who does not know the word takes the end for a failure
	killedExitCode = 137
	nameBytes      = 32
	shortNameBytes = 8
	secondsAtMost  = 1<<31 - 1
)

// StepRow is a step in a word: its name (empty: as the one before), its tasks, the seconds from the start of the one
// before to its own, its seconds, its highest exit code.
type stepRow [5]any

// LastWord is what the runner of the first pod says of its run when that ends: what the script asked for its job, and
// its steps. Head are the first ones, from number 0 on, tail the last ones.
type lastWord struct {
	Ask   string    `json:"ask,omitempty"` // requeue or cancel
	Who   string    `json:"who,omitempty"`
	Steps int       `json:"steps"`
	From  int64     `json:"from,omitempty"` // when the first one began, in seconds since the Unix epoch
	Head  []stepRow `json:"head,omitempty"`
	Tail  []stepRow `json:"tail,omitempty"`
}

// WordPath is the container's termination message; another place is for tests.
func wordPath() string {
	if path := os.Getenv("TESSERA_STEPS_LAST_WORD"); path != "" {
		return path
	}
	return terminationLog
}

// MayWriteWord tells whether a word can be left: the file is the kubelet's to make.
func mayWriteWord() error {
	file, err := os.OpenFile(wordPath(), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		err = file.Close()
	}
	return err
}

// WriteWord puts the word behind what the program itself wrote there. That stays whole up to programsBytes, else its
// end does, as the kubelet would have it; steps are left out for it.
func writeWord(ask, who string, steps *stepList) error {
	if ask == "" && steps.count == 0 {
		return nil
	}
	file, err := os.OpenFile(wordPath(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	said, err := endOf(file, programsBytes)
	if err != nil {
		return err
	}
	if len(said) > 0 && said[len(said)-1] != '\n' {
		said = append(said, '\n')
	}
	line := steps.word(ask, cut(who, whoBytes), wordBytes-len(said)-1)
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = file.WriteAt(append(append(said, line...), '\n'), 0)
	return err
}

// EndOf are the last bytes of a file, cut where a character begins.
func endOf(file *os.File, most int64) ([]byte, error) {
	found, err := file.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, found.Size()-most)
	said, err := io.ReadAll(io.NewSectionReader(file, from, most))
	for from > 0 && len(said) > 0 && !utf8.RuneStart(said[0]) {
		said = said[1:]
	}
	return said, err
}

// Cut is the beginning of a text in so many bytes at most, of whole characters that can be shown.
func cut(text string, most int) string {
	kept := []byte{}
	for _, each := range text {
		if each < ' ' || each == 0x7f || each == utf8.RuneError {
			each = '?'
		}
		if len(kept)+utf8.RuneLen(each) > most {
			break
		}
		kept = utf8.AppendRune(kept, each)
	}
	return string(kept)
}

// Word is the line in so many bytes at most: names are cut for it, then steps in the middle are left out.
func (l *stepList) word(ask, who string, most int) []byte {
	names, each := nameBytes, stepsAtEachEnd
	for {
		line := l.line(ask, who, names, each)
		switch {
		case len(line) <= most:
			return line
		case names > shortNameBytes:
			names = shortNameBytes
		case each > 0:
			each--
		default:
			return l.line(ask, "", 0, 0)
		}
	}
}

func (l *stepList) line(ask, who string, names, each int) []byte {
	kept := slices.Concat(l.head, l.tail)
	head := kept[:min(each, len(kept))]
	tail := kept[len(kept)-min(each, len(kept)-len(head)):]
	word := lastWord{Ask: ask, Who: who, Steps: l.count}
	if l.count > 0 {
		word.From = kept[0].start
	}
	last, before := word.From, ""
	rows := func(of []stepRecord) (coded []stepRow) {
		for _, step := range of {
			name := cut(step.name, names)
			shown := name
			if name == before {
				shown = ""
			}
			coded = append(coded, stepRow{shown, step.tasks, max(0, step.start-last), min(max(0, step.end-step.start), secondsAtMost), step.code})
			last, before = max(last, step.start), name
		}
		return coded
	}
	word.Head, word.Tail = rows(head), rows(tail)
	var line bytes.Buffer
	line.WriteString(wordMark)
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(&word); err != nil {
		return fmt.Appendf(nil, "%s{}", wordMark)
	}
	return bytes.TrimSuffix(line.Bytes(), []byte("\n"))
}
