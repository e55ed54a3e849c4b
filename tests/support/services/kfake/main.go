// An independent implementation of a Kafka broker, for the tests: kfake, of franz-go, on one port of the loopback interface.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port))
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	// kfake takes batches of leader epoch -1 only. A broker overwrites the field, and librdkafka sends 0.
	cluster.ControlKey(0, func(asked kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		for _, topic := range asked.(*kmsg.ProduceRequest).Topics {
			for _, partition := range topic.Partitions {
				for place := 12; place < 16 && place < len(partition.Records); place++ {
					partition.Records[place] = 0xff
				}
			}
		}
		return nil, nil, false
	})
	fmt.Println(cluster.ListenAddrs()[0])
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	<-ended
}
