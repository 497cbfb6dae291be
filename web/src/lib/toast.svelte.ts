// Short notes that something was done, or was not.

export interface Note {
  id: number
  kind: 'ok' | 'error'
  text: string
  /** Takes back what was done. */
  undo?: () => Promise<unknown>
}

class Toasts {
  notes = $state.raw<Note[]>([])
  /** How much of the bottom of the window belongs to the page, in pixels: a bar that must not be covered. */
  dock = $state(0)
  #next = 1

  #add(kind: Note['kind'], text: string, ms: number, undo?: Note['undo']) {
    const id = this.#next++
    this.notes = [...this.notes.slice(-3), { id, kind, text, undo }]
    setTimeout(() => this.dismiss(id), ms)
  }

  /** ok says that something was done. What can be taken back is offered for longer. */
  ok = (text: string, undo?: Note['undo']) => this.#add('ok', text, undo ? 20_000 : 5000, undo)
  error = (text: string) => this.#add('error', text, 12_000)
  dismiss = (id: number) => {
    this.notes = this.notes.filter((n) => n.id !== id)
  }
  undo = async (n: Note) => {
    this.dismiss(n.id)
    try {
      await n.undo?.()
    } catch (err) {
      this.error(`It was not undone: ${err instanceof Error ? err.message : String(err)}`)
    }
  }
}

export const toasts = new Toasts()
