// Package alert tells people, through webhooks, when rules deny too much, when a client is denied too often, and
// when something is wrong with the nodes themselves.
//
// An [Alert] is a definition. What it finds are causes: a rule, a client, a node. A [Cause] is pending while its
// condition has not lasted long enough, then it fires, and in the end it is resolved. [Step] is all of that as a pure
// function. A [Message] is made for each change that someone should hear of, and is delivered to each [Webhook] of
// the alert.
//
// A [Runner] does this for all nodes of a database: one of them has the turn, and when it is gone, another one goes on
// with what the database has. A [Store] is what people see and change: causes, acknowledgements, silences, deliveries.
//
// # What holds
//
//   - There is never more than one message a minute about one cause, whatever it does in between: what is told is how
//     it is when its turn has come, and nothing if that was told before.
//   - A change of state and the messages about it are written in one transaction, by the node that has the turn. So no
//     message is lost or made twice. It may be delivered twice, if a node ends while it waits for an answer: all
//     attempts have the same delivery id.
//   - Messages about one cause reach a webhook in their order: the next one waits until the one before is delivered or
//     given up.
//   - A webhook that fails delays no other, and takes bounded space: [MaxWaiting] messages wait, and the oldest beyond
//     that are dead letters, of which [MaxKept] are kept.
//   - At most [MaxCauses] causes of an alert fire at once: those with the highest values.
//   - If it is not known whether a condition holds, nothing changes.
//   - Decisions do not wait for any of this.
//   - Secrets of webhooks are in no message, error or log.
//
// # What it does not do
//
// It measures nothing: a [Source] does. It follows no redirects.
package alert
