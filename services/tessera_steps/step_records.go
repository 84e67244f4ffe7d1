package main

import "time"

// StepRecord is a step as accounting tells it; times are seconds since the Unix epoch.
type stepRecord struct {
	number int
	name   string
	tasks  int
	start  int64
	end    int64 // 0: it runs
	code   int
}

// StepList are the steps of a run: the first and the last hundred, and how many there were. Its owner locks it.
type stepList struct {
	count int
	head  []stepRecord
	tail  []stepRecord // of those behind the head
}

func (l *stepList) begin(number int, name string, tasks int, now time.Time) {
	record := stepRecord{number: number, name: name, tasks: tasks, start: now.Unix()}
	l.count = max(l.count, number+1)
	if len(l.head) < stepsAtEachEnd {
		l.head = append(l.head, record)
		return
	}
	if l.tail = append(l.tail, record); len(l.tail) > stepsAtEachEnd {
		l.tail = append(l.tail[:0], l.tail[1:]...)
	}
}

// End notes a step's end, if it is one of those that are kept.
func (l *stepList) end(number, code int, now time.Time) {
	for _, part := range [][]stepRecord{l.head, l.tail} {
		for index := range part {
			if part[index].number == number {
				part[index].end, part[index].code = now.Unix(), code
			}
		}
	}
}

// EndAll ends what still runs when the run does: it is killed with it.
func (l *stepList) endAll(now time.Time) {
	for _, part := range [][]stepRecord{l.head, l.tail} {
		for index := range part {
			if part[index].end == 0 {
				part[index].end, part[index].code = now.Unix(), killedExitCode
			}
		}
	}
}
