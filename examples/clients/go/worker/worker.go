package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log"
	"slices"
	"sync"
	"time"

	"example.com/shardwheel-clients/cluster"
	pb "example.com/shardwheel-clients/gen/shardwheel/v1"
)

// handler runs jobs; it stops when the context is done.
type handler struct {
	maxConcurrency int32
	run            func(ctx context.Context, payload []byte) ([]byte, error)
}

// key names an attempt.
type key struct{ job, claim int64 }

func keyOf(ref *pb.AttemptRef) key { return key{ref.GetJobId(), ref.GetClaim()} }
func (k key) shard() int32         { return int32(k.job & 4095) }
func (k key) ref() *pb.AttemptRef  { return &pb.AttemptRef{JobId: k.job, Claim: k.claim} }

// attempt is one execution of a job, from its assignment until a node has acknowledged its result.
type attempt struct {
	key
	job     *pb.Assignment
	session *session
	started bool
	ours    bool // until it is superseded; then its handler may still run, and occupies a slot
	reason  pb.CancelReason
	stopped bool // told to stop; without a reason, since the worker stops
	ctx     context.Context
	cancel  context.CancelFunc
	outcome *pb.Result // once it has ended; it is kept until a node has acknowledged it
	sentOn  *session
}

// worker does what docs/worker-protocol.md says.
type worker struct {
	name        string
	incarnation int64
	handlers    map[string]handler

	mu         sync.Mutex // guards everything below, and all sessions and attempts
	attempts   map[key]*attempt
	epochs     map[int32]int64 // by shard: the highest seen on any stream
	disclaimed map[key]bool    // attempts that a node was told are not here
	links      links
	stopping   bool
}

func newWorker(name string, handlers map[string]handler) *worker {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return &worker{
		name: name, handlers: handlers, incarnation: int64(binary.BigEndian.Uint64(random[:])>>2) + 1,
		attempts: map[key]*attempt{}, epochs: map[int32]int64{}, disclaimed: map[key]bool{},
		links: links{live: map[string]*session{}, members: map[string]string{}, dialling: map[string]bool{}},
	}
}

// serve connects, and keeps things going until the context is done.
func (w *worker) serve(ctx context.Context) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		w.mu.Lock()
		w.dial()
		w.changed()
		w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

func (w *worker) hello() *pb.Hello {
	hello := &pb.Hello{
		Worker: w.name, Incarnation: w.incarnation, Namespace: cluster.Namespace, Sdk: "go-example/1",
		Report: w.report(0, func(key) bool { return true }),
	}
	for name, one := range w.handlers {
		registration := &pb.HandlerRegistration{Handler: name, MaxConcurrency: one.maxConcurrency}
		hello.Handlers = append(hello.Handlers, registration)
	}
	return hello
}

func (w *worker) welcomed(one *session, welcome *pb.Welcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.node, one.welcome, one.heard = welcome.GetNode(), welcome, time.Now()
	w.links.live[one.node], w.links.everWelcomed = one, true
	for _, ref := range welcome.GetSuperseded() {
		w.supersede(keyOf(ref))
	}
	log.Printf("connected to %s", one.node)
	w.changed()
}

func (w *worker) ended(one *session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.open = false
	one.end()
	if w.links.live[one.node] == one {
		delete(w.links.live, one.node)
	}
	w.changed()
}

func (w *worker) received(from *session, response *pb.SessionResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	from.heard = time.Now()
	switch message := response.Message.(type) {
	case *pb.SessionResponse_Jobs:
		for _, job := range message.Jobs.Jobs {
			w.take(from, job)
		}
	case *pb.SessionResponse_ResultAcks:
		for _, ack := range message.ResultAcks.Acks {
			delete(w.attempts, keyOf(ack.Attempt))
		}
	case *pb.SessionResponse_Cancels:
		for _, cancel := range message.Cancels.Cancels {
			if one := w.attempts[keyOf(cancel.Attempt)]; cancel.Reason == pb.CancelReason_CANCEL_SUPERSEDED {
				w.supersede(keyOf(cancel.Attempt))
			} else if one != nil && one.outcome == nil {
				w.stop(one, cancel.Reason)
			}
		}
	case *pb.SessionResponse_OwnerHello:
		var shards []int32
		for _, owned := range message.OwnerHello.Shards {
			w.accepts(owned.Shard, owned.Epoch)
			shards = append(shards, owned.Shard)
		}
		report := w.report(message.OwnerHello.RequestId, func(k key) bool { return slices.Contains(shards, k.shard()) })
		report.Shards = shards
		from.send(&pb.SessionRequest{Message: &pb.SessionRequest_Report{Report: report}})
	case *pb.SessionResponse_Audit:
		asked := map[key]bool{}
		for _, ref := range message.Audit.Attempts {
			asked[keyOf(ref)] = true
			if one := w.attempts[keyOf(ref)]; one == nil || !one.ours {
				w.disclaimed[keyOf(ref)] = true
			}
		}
		report := w.report(message.Audit.RequestId, func(k key) bool { return asked[k] })
		from.send(&pb.SessionRequest{Message: &pb.SessionRequest_Report{Report: report}})
	case *pb.SessionResponse_Demand:
		from.demand = map[string]int32{}
		for _, one := range message.Demand.Demands {
			from.demand[one.Handler] = one.Waiting
		}
	case *pb.SessionResponse_CreditAck:
		from.acked = message.CreditAck.Sequence
	case *pb.SessionResponse_Members:
		told := map[string]string{}
		for _, member := range message.Members.Members {
			told[member.Node] = member.Address
		}
		w.links.setMembers(from, told)
	case *pb.SessionResponse_Drain:
		from.draining = true
	}
	w.changed()
}
