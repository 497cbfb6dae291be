// Short notes that something was done, or was not.

export interface Note {
  id: number
  kind: 'ok' | 'error'
  text: string
}

class Toasts {
  notes = $state<Note[]>([])
  #next = 1

  #add(kind: Note['kind'], text: string, ms: number) {
    const id = this.#next++
    this.notes = [...this.notes.slice(-3), { id, kind, text }]
    setTimeout(() => this.dismiss(id), ms)
  }

  ok = (text: string) => this.#add('ok', text, 5000)
  error = (text: string) => this.#add('error', text, 12_000)
  dismiss = (id: number) => {
    this.notes = this.notes.filter((n) => n.id !== id)
  }
}

export const toasts = new Toasts()
