// Submits jobs and waits for their results: submit HANDLER PAYLOAD [COUNT]
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/shardwheel-clients/cluster"
	pb "example.com/shardwheel-clients/gen/shardwheel/v1"
)

func main() {
	arguments := append(os.Args[1:], []string{"example.echo", `"hello"`, "1"}[min(len(os.Args)-1, 3):]...)
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		log.Fatalf("COUNT: %v", err)
	}
	client, err := cluster.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	var ids []int64
	for range count {
		id, err := submit(client, arguments[0], arguments[1])
		if err != nil {
			log.Fatalf("submit: %v", err)
		}
		ids = append(ids, id)
	}
	fmt.Printf("submitted %d\n", len(ids))
	failed := 0
	for _, id := range ids {
		job, err := wait(client, id)
		if err != nil {
			log.Fatalf("wait: %v", err)
		}
		text := string(job.Result)
		if job.State != pb.Job_COMPLETED {
			failed++
			text = job.GetError().GetMessage()
		}
		fmt.Println(id, job.State, text)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

func submit(client *cluster.Client, handler, payload string) (int64, error) {
	request := &pb.SubmitJobRequest{Namespace: cluster.Namespace, Job: &pb.JobSpec{
		Handler:     handler,
		Payload:     []byte(payload),
		ContentType: "application/json",
		// The key makes the call safe to repeat: if the answer is lost, the next one names the same job.
		DedupeKey: rand.Text(),
		Retry:     &pb.RetryPolicy{MaxAttempts: 3},
		Labels:    map[string]string{"client": "go"},
	}}
	var id int64
	err := client.Call(context.Background(), 10*time.Second, func(ctx context.Context, to *grpc.ClientConn) error {
		response, err := pb.NewJobServiceClient(to).SubmitJob(ctx, request)
		id = response.GetJob().GetId()
		return err
	})
	return id, err
}

func wait(client *cluster.Client, id int64) (*pb.Job, error) {
	request := &pb.WaitJobRequest{Namespace: cluster.Namespace, Id: id, MaxWait: durationpb.New(20 * time.Second)}
	for {
		var response *pb.WaitJobResponse
		err := client.Call(context.Background(), 30*time.Second, func(ctx context.Context, to *grpc.ClientConn) (err error) {
			response, err = pb.NewJobServiceClient(to).WaitJob(ctx, request)
			return err
		})
		if err != nil || response.Done {
			return response.GetJob(), err
		}
	}
}
