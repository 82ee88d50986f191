package main

import (
	"cmp"
	"maps"
	"slices"

	pb "example.com/shardwheel-clients/gen/shardwheel/v1"
)

// changed sends what became possible or necessary. The caller of this and of all that follows holds the mutex.
func (w *worker) changed() {
	w.sendResults()
	w.moveSlots()
	for _, one := range w.links.live {
		owes := func(a *attempt) bool { return a.sentOn == one }
		if one.left && !slices.ContainsFunc(slices.Collect(maps.Values(w.attempts)), owes) {
			one.end()
		}
	}
}

// busy returns the attempts that have not ended, in the order of their jobs.
func (w *worker) busy() []*attempt {
	all := slices.Collect(maps.Values(w.attempts))
	all = slices.DeleteFunc(all, func(a *attempt) bool { return a.outcome != nil })
	slices.SortFunc(all, func(a, b *attempt) int { return cmp.Compare(a.key.job, b.key.job) })
	return all
}

func (w *worker) stop(one *attempt, reason pb.CancelReason) {
	if !one.stopped {
		one.stopped, one.reason = true, reason
	}
	if one.started {
		one.cancel()
	} else {
		w.finish(one, one.stoppedResult())
	}
}

func (one *attempt) stoppedResult() *pb.Result {
	if one.reason == pb.CancelReason_CANCEL_REASON_UNSPECIFIED {
		return &pb.Result{Outcome: &pb.Result_Interrupted{}} // the worker stops
	}
	return &pb.Result{Outcome: &pb.Result_Stopped{Stopped: &pb.Stopped{Reason: one.reason}}}
}

func (w *worker) supersede(name key) {
	one := w.attempts[name]
	if one == nil {
		return
	}
	one.ours = false
	if one.outcome != nil {
		delete(w.attempts, name)
	} else {
		w.stop(one, pb.CancelReason_CANCEL_SUPERSEDED)
	}
}

func (w *worker) finish(one *attempt, outcome *pb.Result) {
	if one.outcome != nil {
		return
	}
	one.cancel()
	outcome.Attempt = one.ref()
	one.outcome = outcome
	if !one.ours {
		delete(w.attempts, one.key) // superseded: its result is dropped
	}
	if !w.stopping {
		w.startWaiting()
	}
	w.changed()
}

// sendResults sends what is not under way: on the stream on which the attempt came, where it frees its slot, else on
// any.
func (w *worker) sendResults() {
	batches := map[*session][]*pb.Result{}
	for _, one := range w.attempts {
		if one.outcome == nil || (one.sentOn != nil && one.sentOn.open) {
			continue
		}
		one.sentOn = nil
		for _, via := range append([]*session{one.session}, slices.Collect(maps.Values(w.links.live))...) {
			if via.open && (one.sentOn == nil || one.sentOn.retiring()) {
				one.sentOn = via
			}
		}
		if one.sentOn != nil {
			batches[one.sentOn] = append(batches[one.sentOn], one.outcome)
		}
	}
	for via, results := range batches {
		via.send(&pb.SessionRequest{Message: &pb.SessionRequest_Results{Results: &pb.ResultBatch{Results: results}}})
	}
}

func (w *worker) report(requestID int64, asked func(key) bool) *pb.Report {
	report := &pb.Report{RequestId: requestID}
	for name, one := range w.attempts {
		switch {
		case !one.ours || !asked(name):
		case one.outcome == nil:
			report.Running = append(report.Running, name.ref())
		default:
			report.Finished = append(report.Finished, name.ref())
		}
	}
	return report
}
