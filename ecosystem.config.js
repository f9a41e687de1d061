// PM2: `pm2 start ecosystem.config.js`, then `pm2 save` and `pm2 startup`. Nothing is to be built.
// `pm2 install pm2-logrotate` keeps logs/ small.

const path = require('path')

const common = {
  cwd: __dirname,
  script: process.env.YAMCHI_BIN || path.join(__dirname, '.venv/bin/yamchi'),
  interpreter: 'none',
  exec_mode: 'fork',
  autorestart: true,
  exp_backoff_restart_delay: 200,
  kill_timeout: 40000, // milliseconds; above SHUTDOWN_TIMEOUT, or running jobs are cut off
  merge_logs: true,
}

module.exports = {
  apps: [
    { ...common, name: 'yamchi-api', args: 'api', out_file: 'logs/api.log', error_file: 'logs/api.log' },
    { ...common, name: 'queue-worker', args: 'worker', out_file: 'logs/out.log', error_file: 'logs/err.log' },
  ],
}
