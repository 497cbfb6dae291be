package redisstore

import (
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// While Sentinel replaces a primary that works, there are two for some seconds: the promoted replica, and the old
// primary, which is told last. What is charged at the old one is lost. So the store hears from all sentinels of the URL,
// of which the one that leads says a moment before that it promotes a replica, and asks the old primary nothing from
// then on.

// longestHandover is longer than Sentinel takes to tell the old primary.
const longestHandover = 12 * time.Second

var errHandover = errors.New("the sentinels are replacing this primary")

// handedOver reports whether the primary that a client asks is being replaced.
func (s *Store) handedOver(client rueidis.Client) bool {
	from := s.handover.Load()
	if from == nil {
		return false
	}
	_, old := client.Nodes()[*from]
	return old
}

// hear hears what a sentinel announces, until the store is closed.
func (s *Store) hear(addr string) {
	o := s.config.options()
	o.InitAddress, o.ForceSingleClient, o.SelectDB, o.PipelineMultiplex = []string{addr}, true, 0, -1
	o.Username, o.Password = s.config.sentinelUser, s.config.sentinelPassword
	for {
		if client, err := rueidis.NewClient(o); err == nil {
			_ = client.Receive(s.base, client.B().Subscribe().Channel(promotes, switched, givesUp).Build(), func(m rueidis.PubSubMessage) {
				s.announced(m.Channel, strings.Fields(m.Message))
			})
			client.Close()
		}
		if wait(s.base, time.Second) != nil {
			return
		}
	}
}

// What sentinels announce: of the one that leads, that it is about to promote a replica, or that this one was not
// promoted; of each, that there is a new primary.
const (
	promotes = "+failover-state-send-slaveof-noone"
	givesUp  = "-failover-abort-slave-timeout"
	switched = "+switch-master"
)

// announced notes what a sentinel has announced.
func (s *Store) announced(what string, words []string) {
	name := s.config.primary
	from := ""
	switch {
	case what == promotes && len(words) == 8 && words[5] == name: // slave NAME HOST PORT @ PRIMARY HOST PORT
		from = net.JoinHostPort(words[6], words[7])
	case what == switched && len(words) == 5 && words[0] == name: // PRIMARY HOST PORT HOST PORT
		from = net.JoinHostPort(words[1], words[2])
	case what == givesUp && len(words) == 4 && words[1] == name: // master PRIMARY HOST PORT
		s.handover.Store(nil)
	}
	if from != "" {
		s.handover.Store(&from)
		time.AfterFunc(longestHandover, func() { s.handover.CompareAndSwap(&from, nil) })
	}
}
