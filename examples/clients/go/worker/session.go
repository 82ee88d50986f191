package main

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc/connectivity"

	"example.com/shardwheel-clients/cluster"
	pb "example.com/shardwheel-clients/gen/shardwheel/v1"
)

const answerTimeout = 5 * time.Second

// session is one stream to one node. Its fields are guarded by the worker's mutex.
type session struct {
	node            string
	welcome         *pb.Welcome
	open            bool
	draining        bool              // the node said that it is about to stop
	left            bool              // the other nodes know it no more
	told            map[string]string // the members, as the node knows them
	demand          map[string]int32
	credit          map[string]int32 // as sent last
	sequence, acked int64
	heard           time.Time
	out             chan *pb.SessionRequest // closed by end
	ended           bool
	cancel          context.CancelFunc
}

func (s *session) retiring() bool { return s.draining || s.left }

// send queues a message. A node that does not read is given up rather than waited for.
func (s *session) send(request *pb.SessionRequest) {
	if !s.open || s.ended {
		return
	}
	select {
	case s.out <- request:
	default:
		s.cancel()
	}
}

// end closes the stream after everything that was sent.
func (s *session) end() {
	if !s.ended {
		s.ended = true
		close(s.out)
	}
}

// converse holds one session from its connection to its end.
func (w *worker) converse(node, address string) error {
	connection, err := cluster.Dial(address)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithCancel(cluster.WithToken(context.Background()))
	defer cancel()
	waiting, done := context.WithTimeout(ctx, answerTimeout)
	defer done()
	connection.Connect()
	for state := connection.GetState(); state != connectivity.Ready && state != connectivity.TransientFailure; {
		if !connection.WaitForStateChange(waiting, state) {
			return waiting.Err()
		}
		state = connection.GetState()
	}
	one := &session{open: true, out: make(chan *pb.SessionRequest, 4096), cancel: cancel, heard: time.Now()}
	stream, err := w.introduce(ctx, one, node, pb.NewWorkerServiceClient(connection))
	if stream == nil || err != nil {
		return err
	}
	defer w.ended(one)
	go func() {
		for request := range one.out {
			if stream.Send(request) != nil {
				return // the reader tells how the stream has ended
			}
		}
		_ = stream.CloseSend()
	}()
	go w.beat(ctx, one)
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		w.received(one, response)
	}
}

// introduce opens the stream and waits for the welcome; there is no stream if another session was faster. Of two hellos
// to one node, the second would not know what is unread on the first one's stream: so they go one at a time.
func (w *worker) introduce(
	ctx context.Context, one *session, node string, client pb.WorkerServiceClient,
) (pb.WorkerService_SessionClient, error) {
	w.links.hello.Lock()
	defer w.links.hello.Unlock()
	w.mu.Lock()
	superfluous := w.links.live[node] != nil || (node == "" && len(w.links.live) > 0)
	hello := &pb.SessionRequest{Message: &pb.SessionRequest_Hello{Hello: w.hello()}}
	w.mu.Unlock()
	if superfluous {
		return nil, nil
	}
	timer := time.AfterFunc(answerTimeout, one.cancel)
	defer timer.Stop()
	stream, err := client.Session(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(hello); err != nil && err != io.EOF { // after io.EOF, Recv tells what happened
		return nil, err
	}
	response, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	w.welcomed(one, response.GetWelcome())
	return stream, nil
}

func (w *worker) beat(ctx context.Context, one *session) {
	silence := one.welcome.LeaseDuration.AsDuration() * 2 / 3
	ticker := time.NewTicker(one.welcome.HeartbeatInterval.AsDuration())
	defer ticker.Stop()
	for sequence := int64(1); ; sequence++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		w.mu.Lock()
		one.send(&pb.SessionRequest{Message: &pb.SessionRequest_Heartbeat{Heartbeat: &pb.Heartbeat{Sequence: sequence}}})
		silent := time.Since(one.heard) > silence
		w.mu.Unlock()
		if silent { // the connection may hang without an error
			one.cancel()
		}
	}
}
