package main

import (
	"context"
	"errors"
	"fmt"

	pb "example.com/shardwheel-clients/gen/shardwheel/v1"
)

func (w *worker) take(from *session, job *pb.Assignment) {
	name := key{job.JobId, job.Claim}
	if w.attempts[name] != nil {
		return // sent twice
	}
	one := &attempt{key: name, job: job, session: from, ours: true}
	one.ctx, one.cancel = context.WithCancel(context.Background())
	var older *attempt
	for _, other := range w.busy() {
		if other.ours && other.key.job == job.JobId {
			older = other
		}
	}
	w.attempts[name] = one
	_, known := w.handlers[job.Handler]
	current := w.accepts(name.shard(), job.Epoch)
	if !known || !current || w.stopping || w.disclaimed[name] || (older != nil && older.claim > job.Claim) {
		w.finish(one, &pb.Result{Outcome: &pb.Result_Interrupted{}}) // given back: no try is burned
		return
	}
	if older != nil {
		w.supersede(older.key)
	}
	w.startWaiting()
}

func (w *worker) accepts(shard int32, epoch int64) bool {
	if epoch < w.epochs[shard] {
		return false
	}
	w.epochs[shard] = epoch
	return true
}

func (w *worker) startWaiting() {
	places := map[string]int32{}
	for name, one := range w.handlers {
		places[name] = one.maxConcurrency
	}
	busy := w.busy()
	for _, one := range busy {
		if one.started {
			places[one.job.Handler]--
		}
	}
	for _, one := range busy {
		if !one.started && places[one.job.Handler] > 0 {
			places[one.job.Handler]--
			one.started = true
			go w.run(one)
		}
	}
}

func (w *worker) run(one *attempt) {
	payload, err := w.execute(one)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		done := &pb.Completed{Result: payload, ContentType: "application/json"}
		w.finish(one, &pb.Result{Outcome: &pb.Result_Completed{Completed: done}})
	case one.stopped:
		w.finish(one, one.stoppedResult())
	default:
		failed := &pb.Failed{Error: &pb.JobError{Type: fmt.Sprintf("%T", err), Message: err.Error()}}
		w.finish(one, &pb.Result{Outcome: &pb.Result_Failed{Failed: failed}})
	}
}

func (w *worker) execute(one *attempt) (result []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = errors.New(fmt.Sprint("panic: ", cause))
		}
	}()
	return w.handlers[one.job.Handler].run(one.ctx, one.job.Payload)
}
