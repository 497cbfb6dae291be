// Package gossip keeps the counters of several regions together. Each region counts by itself, in its own store,
// and tells the others what it has admitted. They charge it at the instant at which it was used.
//
// # The bound
//
// A region may be ahead of what the others have acknowledged by its credit, in units of a counter, which its nodes
// share. So what a region does not know of is at most the credit of each of the others, and when it admits
// something that passes by what it knows, then all together are beyond the limit by at most
//
//	(regions - 1) x credit
//
// whatever the load, and however long messages take. A cost that is larger than the credit passes when all else is
// acknowledged; then it takes the place of the credit in the bound. In a window, a window of the limit counts; a
// bucket is at most like one whose max and burst are larger by that much. Instants are those of the clocks of the
// regions' stores: by one clock, what is admitted while they differ comes on top. Of a bucket that is its rate times as
// much time, and of a fixed window what passes within that time at its edges. What changes of charges take beyond what was
// charged comes on top, too: it was used before it was known, and no credit holds it back. With more nodes in a region
// than units of credit, each has one.
//
// A take that finds no credit left waits for an acknowledgement (Options.Wait), and the others are told at once. Then
// it is denied, with the basis [stint.Local].
//
// # Partitions
//
// A region that is cut off from another keeps to its share of what remained: the limit, by weight, of which as much is
// used as of the counter. So do all that hear from it. With [stint.CreditDeny] it keeps to its credit.
//
// This does not add to the bound, because no region goes on as usual while another one admits shares: that takes the
// consent of all others, and what was acknowledged without it frees no credit. In detail:
//
//   - A node that hears from another region marks that in the store of its own region. A mark is kept for Options.Cut. A
//     region is cut off from another if there is no mark. It says so in its answers to pings.
//   - A node whose region is cut off, or hears from one that is, sets another mark. It removes it when the regions
//     are together again, and the others know of all that it has admitted.
//   - A node that finds no such mark consents that others go on, in its answers to pings, for 3 s from when it began
//     to look. Another region counts them from when it has sent the ping, by its own clock.
//   - A node admits shares 3 s after it has set its mark. So then no other region has the consent of this one.
//
// Hence, when a region goes on as usual, no other one admits shares, and it knows of all but their credit. When regions
// begin with shares, each knows of all that was admitted, but for the credit of the others, which they have once. Their
// shares of what remains add up to what remains. So all of them together are beyond the limit by what they did not know
// of, and this is the bound again. A share stays what it is until the regions are together, and the others know of all
// that was admitted from it, or it has recovered.
//
// If the store of a region is out of reach for Options.Cut, its nodes say that it is cut off, since nothing that they are
// told is charged: so the other regions keep to their shares, and do not wait for it. The nodes themselves decide as
// their layers say, without shares and credit, and consent: this comes on top of the bound. A node that
// is killed, or stands still for longer than 30 s, while it has admitted shares is not waited for: what it has not told
// comes on top.
//
// # What is told
//
// Batches are numbered by the process that sends them, and sent again until they are acknowledged. A receiver marks in
// its region's store that it has a batch, and then charges it, so no batch is charged twice, whichever nodes receive
// it. Lost are: what a process has not told when it is killed, and what a receiver had not charged yet when it is
// killed or its store fails in the middle of it: at most what was admitted in one interval, and on the way. A receiver that
// stops, or whose stream is cut, charges what it has begun to charge. Stats.Lost has what is lost, but for what is lost with
// a process that is killed: no one can count that.
//
// What was admitted in one window is told together, at its last instant. Changes of charges are told as they were made,
// those with an ID with that, so that they are made once, in whichever region a caller makes them. A change counts for at most
// 4 x (cap + max) units elsewhere. Resets are told, too. Penalties are not: bans hold in their own region. Concurrency cannot be gossiped, since places
// are held and not spent.
//
// # Bounds of memory
//
// There is an account for each counter of which something was admitted here that has not recovered, for up to
// Options.MaxCounters, of about 900 bytes resident with two other regions, garbage included. Of further counters, a node admits its share. A region that
// does not answer costs a pointer for each of them, and 8 batches.
//
// A change with an ID is kept until all regions know of it, at most 1,024 of a counter and window, and MaxCounters of all
// counters. When there are more, regions that do not know of the oldest yet are told what it has charged without its ID, and
// not what it has given back: they count too much until that has recovered, and never too little.
package gossip
