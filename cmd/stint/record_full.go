package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
)

func newRecord(t *terminal) *cobra.Command {
	show := func(c *cobra.Command, a *client) error {
		var x admin.Capture
		if err := a.do(c.Context(), call{path: "/capture", into: &x}); err != nil {
			return err
		}
		return t.print(x, []admin.Capture{x}, func() error {
			_, err := fmt.Fprintln(t.out, captureText(&x))
			return err
		})
	}
	return family(
		"record", "Capture all decisions of a node, to replay them exactly",
		newRecordFull(t),
		queryCommand(t, &cobra.Command{Use: "status", Short: "Show the last capture of a node", Example: "  stint record status\n  stint record status -o json"}, func(c *cobra.Command, a *client, _ []string) error {
			return show(c, a)
		}),
		queryCommand(t, &cobra.Command{Use: "stop", Short: "End the capture that is under way", Example: "  stint record stop"}, func(c *cobra.Command, a *client, _ []string) error {
			if err := a.do(c.Context(), call{method: http.MethodPost, path: "/capture/stop"}); err != nil {
				return err
			}
			return show(c, a)
		}),
		serverCommand(t, &cobra.Command{
			Use: "download FILE", Short: "Write the last capture of a node to a file", Args: wants(1, 1, "a FILE, or - for the standard output"),
			Example: "  stint record download capture.stint\n  stint replay --capture capture.stint",
		}, func(c *cobra.Command, a *client, args []string) error {
			return a.downloadCapture(c.Context(), t, args[0])
		}),
		serverCommand(t, &cobra.Command{Use: "remove", Short: "Delete the last capture on its node", Example: "  stint record remove"}, func(c *cobra.Command, a *client, _ []string) error {
			return a.do(c.Context(), call{method: http.MethodDelete, path: "/capture/file"})
		}),
	)
}

func newRecordFull(t *terminal) *cobra.Command {
	var length time.Duration
	most := byteSize(1 << 30)
	var file string
	c := queryCommand(t, &cobra.Command{
		Use: "full", Short: "Capture all decisions of a node for a while",
		Long: `Have a node write all its decisions to a file, with everything that they depend on, so that
"stint replay --capture" decides each of them again, bit for bit. It ends after the time of --for,
at the size of --max, when the rules are replaced by others, or with Ctrl-C.

The node is the one that --server names; others go on as before. If several share their counters,
capture on all of them at once, and replay all files together.

The file has paths, addresses, users, and the headers and claims that rules look at, as they are.
It has no credentials. It stays on the node until the next capture, or "stint record remove".`,
		Example: "  stint record full --for 10m --max 1GB --file capture.stint\n  stint replay --capture capture.stint",
	}, func(c *cobra.Command, a *client, _ []string) error {
		if length < time.Second || length > time.Hour {
			return usageError(c, "--for %v: want 1s to 1h", length)
		}
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		var x admin.Capture
		body := admin.NewCapture{For: length.Seconds(), MaxBytes: int64(most)}
		if err := a.do(ctx, call{method: http.MethodPost, path: "/capture", body: body, into: &x}); err != nil {
			return err
		}
		if err := a.followCapture(ctx, t, &x); err != nil {
			return err
		}
		if file != "" {
			if err := a.downloadCapture(context.WithoutCancel(ctx), t, file); err != nil {
				return err
			}
		}
		err := t.print(x, []admin.Capture{x}, func() error {
			_, err := fmt.Fprintln(t.out, captureText(&x))
			return err
		})
		if x.Reason == "error" && err == nil {
			err = advice{errors.New("the node could not write the file"), "the log of the server, which says why"}
		}
		return err
	})
	c.Flags().DurationVar(&length, "for", 10*time.Minute, "how long, as a `duration` such as 10m, at most 1h")
	c.Flags().Var(&most, "max", "how large the file may become, as a `size` such as 500MB")
	c.Flags().StringVar(&file, "file", "", "write the capture to this `file` when it has ended (default: it stays on the node)")
	return c
}

// followCapture shows how a capture goes until it has ended. When ctx is done, it is stopped.
func (a *client) followCapture(ctx context.Context, t *terminal, x *admin.Capture) error {
	screen := t.screen()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for x.Running {
		if screen != nil {
			fmt.Fprint(screen, clearLine+captureText(x))
		}
		select {
		case <-tick.C:
			if err := a.do(ctx, call{path: "/capture", into: x}); err != nil && ctx.Err() == nil {
				return err
			}
		case <-ctx.Done():
			// Whoever has stopped it meanwhile has done the same.
			ctx := context.WithoutCancel(ctx)
			if err := a.do(ctx, call{method: http.MethodPost, path: "/capture/stop"}); err != nil && !hasStatus(err, http.StatusConflict) {
				return err
			}
			if err := a.do(ctx, call{path: "/capture", into: x}); err != nil {
				return err
			}
		}
	}
	if screen != nil {
		fmt.Fprint(screen, clearLine)
	}
	return nil
}

func (a *client) downloadCapture(ctx context.Context, t *terminal, file string) error {
	return t.writeTo(file, func(w io.Writer) error { return a.copy(ctx, call{path: "/capture/file"}, w) })
}

// captureReasons say why a capture has ended.
var captureReasons = map[string]string{
	"time": "its time was over", "size": "the file was as large as it may be", "disk": "the disk had no more room", "rules": "the rules were replaced by others",
	"stopped": "it was stopped", "shutdown": "the node has stopped", "error": "the file could not be written",
}

// captureText says how a capture goes, in a line.
func captureText(x *admin.Capture) string {
	text := printable(x.Node) + ": "
	switch {
	case x.Started.IsZero() && x.File:
		return text + "nothing was captured since the node has started; there is a file from before"
	case x.Started.IsZero():
		return text + "nothing was captured yet"
	case x.Running:
		text += "capturing until " + x.Until.UTC().Format(time.RFC3339)
	default:
		text += "captured from " + x.Started.UTC().Format(time.RFC3339) + " to " + x.Ended.UTC().Format(time.RFC3339) + ", when " + captureReasons[x.Reason]
	}
	size := byteSize(x.Bytes)
	text += fmt.Sprintf("; %d decisions, %v", x.Decisions, &size)
	if x.Lost > 0 {
		text += fmt.Sprintf("; %d records were lost, so a replay is not exact", x.Lost)
	}
	return text
}

// byteSize is a number of bytes, as people write it.
type byteSize int64

var byteUnits = []struct {
	name string
	size int64
}{{"GB", 1 << 30}, {"MB", 1 << 20}, {"KB", 1 << 10}, {"B", 1}}

// String implements [pflag.Value].
func (b *byteSize) String() string {
	for _, u := range byteUnits {
		if n := int64(*b); n >= u.size && (n%u.size == 0 || n >= 10*u.size) {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Set implements [pflag.Value].
func (b *byteSize) Set(text string) error {
	digits, size := strings.ToUpper(text), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(digits, u.name); ok {
			digits, size = rest, u.size
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > (1<<62)/size {
		return errors.New("want a number of bytes, or one with KB, MB or GB, such as 500MB")
	}
	*b = byteSize(n * size)
	return nil
}

// Type implements [pflag.Value].
func (*byteSize) Type() string { return "size" }
