// Stores a schedule and shows its next firings: schedule NAME HANDLER PAYLOAD CRON [TIME_ZONE]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"

	"example.com/shardwheel-clients/cluster"
	pb "example.com/shardwheel-clients/gen/shardwheel/v1"
)

func main() {
	defaults := []string{"example", "example.echo", `"tick"`, "*/5 * * * *", "UTC"}
	arguments := append(os.Args[1:], defaults[min(len(os.Args)-1, len(defaults)):]...)
	name := arguments[0]
	spec := &pb.ScheduleSpec{
		Timing: &pb.ScheduleSpec_Cron{Cron: &pb.CronTiming{Expression: arguments[3], TimeZone: arguments[4]}},
		Job:    &pb.JobSpec{Handler: arguments[1], Payload: []byte(arguments[2]), ContentType: "application/json"},
	}
	client, err := cluster.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	err = client.Call(context.Background(), 10*time.Second, func(ctx context.Context, to *grpc.ClientConn) error {
		schedules := pb.NewScheduleServiceClient(to)
		// Creates the schedule, or changes the one of that name; an unchanged one keeps its next firing.
		ensured, err := schedules.EnsureSchedules(ctx, &pb.EnsureSchedulesRequest{
			Namespace: cluster.Namespace,
			Schedules: []*pb.NamedScheduleSpec{{Name: name, Spec: spec}},
		})
		if err != nil {
			return err
		}
		preview, err := schedules.PreviewSchedule(ctx, &pb.PreviewScheduleRequest{Spec: spec, Count: 3})
		if err != nil {
			return err
		}
		fmt.Println(name, ensured.Results[0].Change)
		fmt.Println(preview.Description)
		for _, firing := range preview.Firings {
			fmt.Println(firing.AsTime().Format(time.RFC3339))
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
