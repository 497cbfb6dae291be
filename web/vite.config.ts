import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { svelte } from '@sveltejs/vite-plugin-svelte'
import tailwindcss from '@tailwindcss/vite'
import { defineConfig } from 'vitest/config'
import type { Plugin } from 'vite'

// The first load is the frame and the overview, which is what a browser fetches before it
// shows anything of use.
const firstLoad = ['src/main.ts', 'src/pages/Overview.svelte']
const budget = 150 // kB, gzipped

// weigh says how much a browser fetches for the first load, and fails a build that is over
// the budget.
function weigh(): Plugin {
  return {
    name: 'weigh',
    apply: 'build',
    writeBundle(_, bundle) {
      const files = new Set<string>()
      const add = (name: string) => {
        const chunk = bundle[name]
        if (!chunk || files.has(name)) return
        files.add(name)
        if (chunk.type !== 'chunk') return
        chunk.imports.forEach(add)
        const styles = (chunk as { viteMetadata?: { importedCss?: Set<string> } }).viteMetadata?.importedCss
        styles?.forEach(add)
      }
      for (const chunk of Object.values(bundle)) {
        if (chunk.type === 'chunk' && firstLoad.some((f) => chunk.facadeModuleId?.endsWith(f) || (chunk.facadeModuleId?.endsWith('/index.html') && f === firstLoad[0]))) add(chunk.fileName)
      }
      let bytes = 0
      for (const name of files) {
        const file = bundle[name]!
        bytes += gzipSync(file.type === 'chunk' ? file.code : file.source).length
      }
      const text = `first load: ${(bytes / 1000).toFixed(1)} kB gzipped in ${files.size} files, of ${budget} kB`
      if (files.size < 3 || bytes > budget * 1000) this.error(text)
      this.info(text)
    },
  }
}

// pack compresses what browsers fetch once, so that neither the binary nor a server that starts has to.
function pack(): Plugin {
  return {
    name: 'pack',
    apply: 'build',
    writeBundle({ dir }, bundle) {
      for (const name of Object.keys(bundle).filter((name) => name.startsWith('assets/'))) {
        const file = join(dir!, name)
        const plain = readFileSync(file)
        const packed = gzipSync(plain, { level: 9 })
        if (packed.length < plain.length) {
          writeFileSync(`${file}.gz`, packed)
          rmSync(file)
        }
      }
    },
  }
}

export default defineConfig({
  plugins: [tailwindcss(), svelte(), weigh(), pack()],
  resolve: process.env.VITEST ? { conditions: ['browser'] } : {},
  build: {
    target: 'es2022',
    // Small files are files, too: the policy of the server has no data: but for images.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rolldownOptions: { input: ['index.html', 'docs.html'] },
  },
  server: {
    fs: { allow: ['..'] }, // for the document of the decision API
    proxy: { '/admin': process.env.STINT_ADMIN ?? 'http://127.0.0.1:9090' },
  },
  test: {
    environment: 'happy-dom',
    include: ['src/**/*.test.ts'],
  },
})
