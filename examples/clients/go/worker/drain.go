package main

import (
	"context"
	"time"

	pb "example.com/shardwheel-clients/gen/shardwheel/v1"
)

// drain lets running attempts end for a while, then stops them and gives them back; it says goodbye last.
func (w *worker) drain(ctx context.Context, grace time.Duration) {
	idle := func() bool { return len(w.busy()) == 0 }
	stopAll := func(which func(*attempt) bool) {
		for _, one := range w.busy() {
			if which(one) {
				w.stop(one, pb.CancelReason_CANCEL_REASON_UNSPECIFIED)
			}
		}
	}
	w.mu.Lock()
	w.stopping = true
	stopAll(func(one *attempt) bool { return !one.started })
	w.changed()
	w.mu.Unlock()
	w.until(ctx, grace, idle)
	w.mu.Lock()
	stopAll(func(*attempt) bool { return true })
	w.mu.Unlock()
	w.until(ctx, 5*time.Second, idle)
	w.mu.Lock()
	for _, one := range w.busy() { // its handler does not stop
		w.finish(one, &pb.Result{Outcome: &pb.Result_Interrupted{}})
	}
	w.mu.Unlock()
	w.until(ctx, 5*time.Second, func() bool { return len(w.attempts) == 0 })
	w.mu.Lock()
	w.links.closed = true
	for _, one := range w.links.live {
		one.send(&pb.SessionRequest{Message: &pb.SessionRequest_Goodbye{Goodbye: &pb.Goodbye{Reason: "worker stops"}}})
		one.end()
	}
	w.mu.Unlock()
	w.until(ctx, time.Second, func() bool { return len(w.links.live) == 0 })
}

func (w *worker) until(ctx context.Context, timeout time.Duration, condition func() bool) {
	for end := time.Now().Add(timeout); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		w.mu.Lock()
		reached := condition()
		w.mu.Unlock()
		if reached {
			return
		}
	}
}
